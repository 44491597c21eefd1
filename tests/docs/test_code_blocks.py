"""Every code block of the documentation is run, or says why it is not."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path

import onnx
import pytest
import yaml
from _pytest.mark import ParameterSet
from doc_blocks import PAGES, REASONS, ROOT, Block, blocks, with_counts
from doc_folder import prepare, two_branches
from doc_shell import Shell, shell

SHELLS = ("sh", "console")
END = "--- the end of a block ---"
PLACEHOLDERS = {"OPERATOR": "b", "MODEL": "model"}  # what a reader puts there


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with shell(tmp_path_factory.mktemp("shell")) as found:
        yield found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, bash: Shell) -> Path:
    """The files of a reader; made by the first of the processes that the tests are spread over."""
    folder = tmp_path_factory.getbasetemp().parent / "documentation"
    with folder.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / "ready").exists():
            folder.mkdir()
            prepare(folder, bash)
            (folder / "ready").touch()
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, page: Path) -> Path:
    """A copy of the files that the page names, and of a model."""
    named = {*re.findall(r"[\w.-]+", page.read_text()), "model.onnx", "model.iosched.onnx", "profile.sqlite"}

    def others(inside: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(inside) == prepared and "." in name and name not in named]

    return Path(shutil.copytree(prepared, tmp_path / "page", ignore=others))


def pages(*languages: str, is_run: bool = True) -> list[Path]:
    return [
        page for page in PAGES if any(each.language in languages and each.is_run == is_run for each in blocks(page))
    ]


def carried_out(*languages: str) -> list[ParameterSet]:
    """The pages that have such blocks; all but the README take long together."""
    return [
        pytest.param(page, marks=[] if page.name == "README.md" else pytest.mark.slow) for page in pages(*languages)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", carried_out(*SHELLS), ids=name)
def test_commands_do_what_they_are_said_to_do(page: Path, folder: Path, bash: Shell) -> None:
    """One block after another, as a reader does who goes through the page."""
    for block in blocks(page):
        if block.language in SHELLS and block.is_run:
            done = bash.run(script_of(block), folder)
            assert done.code == 0, f"{block.place}: {done.code}\n{done.out[-500:]}\n{done.err[-2000:]}"
            if block.shown is not None:
                assert shape(block.shown) == shape(done.out), block.place


@pytest.mark.parametrize("page", pages(*SHELLS, is_run=False), ids=name)
def test_options_exist_where_commands_are_not_carried_out(page: Path, folder: Path, bash: Shell) -> None:
    for block in blocks(page):
        if block.language in SHELLS and not block.is_run:
            done = bash.read(script_of(block), folder)
            assert not done.failed, f"{block.place}: {done.failed}{done.err[-2000:]}"


def script_of(block: Block) -> str:
    """The commands of a block; of `console`, those behind a `$`."""
    code = block.code
    if block.language == "console":
        code = "\n".join(re.findall(r"^\$ (.*(?:\\\n.*)*)", code, re.MULTILINE))
    for word, stands_for in PLACEHOLDERS.items():
        code = re.sub(rf"\b{word}\b", stands_for, code)
    return code


def shape(printed: str) -> list[str]:
    """What is printed, whatever its numbers."""
    return [re.sub(r"\d[\d.,e+-]*", "0", line).rstrip() for line in printed.strip().splitlines()]


@pytest.mark.parametrize("page", carried_out("python"), ids=name)
def test_examples_in_python_print_what_stands_below_them(page: Path, folder: Path, bash: Shell) -> None:
    """Names that a block binds are known to those behind it."""
    onnx.save(two_branches(32, 28), folder / "model.onnx")
    run = [block for block in blocks(page) if block.language == "python" and block.is_run]
    (folder / "page.py").write_text(script_of_all(run))
    done = bash.run("python page.py", folder)
    assert done.code == 0, done.err[-2000:]
    for block, printed in zip(run, done.out.split(END), strict=False):
        assert block.shown is None or block.shown == printed, block.place


def script_of_all(run: list[Block]) -> str:
    """The blocks with the lines that they have in the page; behind each, the end of what it prints is marked."""
    lines: list[str] = []
    for block in run:
        lines += [""] * (block.line - len(lines)) + block.code.splitlines() + [f"print({END!r}, end='')"]
    return "\n".join(lines)


@pytest.mark.parametrize("page", pages("json", "toml", "yaml"), ids=name)
def test_files_that_are_shown_can_be_read(page: Path) -> None:
    read = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for block in blocks(page):
        if block.language in read:
            assert read[block.language](block.code), block.place


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are_written_in_and_why_they_are_not_run(page: Path) -> None:
    known = {*SHELLS, "python", "json", "toml", "yaml", "text"}
    for block in blocks(page):
        assert block.language in known, f"{block.place}: write ```sh, ```python, ... or ```text"
        assert block.language != "text" or not block.is_run, f"{block.place}: output of what? <!-- not run: ... -->"
        if block.reason is not None:
            assert block.reason.split(",")[0] in REASONS, f"{block.place}: give one of {', '.join(REASONS)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_run_a_block_read_its_page(page: Path) -> None:
    for test in {block.test for block in blocks(page) if block.test}:
        assert page.name in (ROOT / test).read_text(), f"{test} does not name {page.name}"


def test_it_is_told_how_many_blocks_are_run_and_why_others_are_not() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert text == with_counts(text), "stale: run  python tests/support/doc_blocks.py"
