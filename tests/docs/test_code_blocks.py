"""Every code block of the documentation is run, or states why it is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from _pytest.mark import ParameterSet
from doc_blocks import PAGES, REASONS, ROOT, Block, blocks, with_counts
from onnx import TensorProto, helper
from small_models import proto_of, weight

from iosched.models.zoo.network import Network
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE


@dataclass(frozen=True)
class Done:
    """The outcome of a block.

    Attributes:
        failed: the commands whose options could not be parsed, if nothing was run.
    """

    code: int
    out: str
    err: str
    failed: str = ""


@dataclass(frozen=True)
class Shell:
    """Runs blocks of `sh` in a folder; `tools` has the replacements of `iosched` and `python`."""

    tools: Path

    def run(self, script: str, folder: Path) -> Done:
        """Runs a block in bash, which stops at the first command that fails."""
        path = os.pathsep.join([str(self.tools), os.environ["PATH"]])
        return self._bash(["-e", "-o", "pipefail", "-c", script], folder, {"PATH": path})

    def read(self, script: str, folder: Path) -> Done:
        """Lets `iosched` and the scripts of `benchmarks/` only parse their options, and other commands do nothing."""
        failed = folder / "failed"
        failed.unlink(missing_ok=True)
        others = "command_not_found_handle() { :; }\n"
        done = self._bash(["-c", others + script], folder, {"PATH": str(self.tools), "READ_ONLY": str(failed)})
        return Done(done.code, done.out, done.err, failed.read_text() if failed.exists() else "")

    def _bash(self, words: list[str], folder: Path, more: dict[str, str]) -> Done:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("IOSCHED_", "RAY_", "XDG_"))},
            "HOME": str(folder / "home"),  # no settings and keys of a user
            SHARE_VARIABLE: "1",  # other tests use the cores, too: no command should warn of that
            "IOSCHED_PROFILE_DB": str(folder / "profile.sqlite"),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            **more,
        }
        done = subprocess.run(
            ["/bin/bash", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Done(done.returncode, done.stdout, done.stderr)


def shell(folder: Path) -> Shell:
    """A shell whose programs lie in `folder`."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("iosched", "python"):
        (tools / name).write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(COMMANDS.parent)!r})\n"
            "from doc_commands import main\nmain()\n"
        )
        (tools / name).chmod(0o755)
    return Shell(tools)


_SPACES = (ROOT / "docs" / "exploring.md").read_text().partition("## Spaces of networks\n")[2]

# Commands that a reader has run before any page: an optimized model, one of several, and earlier results.
_BEFORE = """
iosched -q optimize model.onnx
iosched -q optimize retrained.onnx --schedule-from model.schedule.json
iosched -q export model.iosched.onnx
iosched -q batch a.onnx b.onnx c.onnx -o super.onnx
iosched -q bench model.iosched.onnx --with iosched --with onnxruntime --json > before.json
iosched -q profile export h100.jsonl
iosched -q explore base.onnx --space space.py --objective latency:v100,params -o pelee.explored
cp before.json now.json; cp before.json baseline.json
cp model.schedule.json old.schedule.json; cp model.schedule.json new.schedule.json
for file in v100 measurements; do cp h100.jsonl $file.jsonl; done
for name in four_convolutions inception_v3 squeezenet; do cp model.onnx $name.onnx; done
for name in four_convolutions inception_v3 sequential; do cp model.iosched.onnx $name.iosched.onnx; done
"""


def prepare(folder: Path, shell: Shell) -> None:
    """Writes all files into `folder`."""
    for name in ("model", "retrained", "variant", "a", "b", "c"):
        seed = 8 * ord(name[0])  # models have four weights, none of which is shared
        onnx.save(two_branches(seed=seed), folder / f"{name}.onnx")
    onnx.save(_encoder("input_ids", "attention_mask"), folder / "bert.onnx")
    onnx.save(_encoder("ids", "mask"), folder / "encoder.onnx")
    onnx.save(_base(), folder / "base.onnx")
    np.save(folder / "x.npy", np.zeros((1, 8, 14, 14), np.float32))
    codes = re.findall(r"```python\n(.*?)```", _SPACES, re.DOTALL)
    for name, code in zip(("space.py", "evolving.py"), codes, strict=True):
        (folder / name).write_text(code)
    (folder / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    for name in ("NASNetMobile", "DenseNet201"):  # never read
        (folder / f"{name}.onnx").touch()
    (folder / "candidates").mkdir()
    for name in "ab":
        shutil.copy(folder / f"{name}.onnx", folder / "candidates")
    done = shell.run(_BEFORE, folder)
    assert done.code == 0, done.err


def two_branches(channels: int = 8, size: int = 14, seed: int = 0) -> onnx.ModelProto:
    """Two branches of two convolutions each, and their Concat."""
    weights = {f"w{name}": weight(channels, channels, 3, 3, seed=seed + ord(name)) for name in "abcd"}
    nodes = [
        helper.make_node("Conv", [read, f"w{name}"], [name], pads=[1] * 4) for read, name in ("xa", "ab", "xc", "cd")
    ]
    nodes.append(helper.make_node("Concat", ["b", "d"], ["y"], axis=1))
    return proto_of(nodes, {"x": (1, channels, size, size)}, ["y"], weights)


def _encoder(ids: str, mask: str) -> onnx.ModelProto:
    """A model of token ids and a mask, of any length."""
    nodes = [
        helper.make_node("Gather", ["words", ids], ["read"]),
        helper.make_node("Unsqueeze", [mask, "last"], ["kept_words"]),
        helper.make_node("Mul", ["read", "kept_words"], ["kept"]),
        helper.make_node("MatMul", ["kept", "weights"], ["y"]),
    ]
    known = {"words": weight(100, 16), "weights": weight(16, 16), "last": np.array([-1])}
    sizes = ("batch", "length")
    return proto_of(nodes, {ids: (TensorProto.INT64, sizes), mask: sizes}, ["y"], known)


def _base() -> onnx.ModelProto:
    """A block that the space of docs/exploring.md matches."""
    net = Network("base")
    x = net.conv(net.input(3, 8), 4, 1, "block/first")
    x = net.conv(x, 4, 3, "block/middle", padding=1)
    return net.finish(net.conv(x, 4, 1, "block/last"))


COMMANDS = Path(__file__).with_name("doc_commands.py")
SHELLS = ("sh", "console")
END = "--- the end of a block ---"
PLACEHOLDERS = {"OPERATOR": "b", "MODEL": "model"}  # filled in by a reader


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return shell(tmp_path_factory.mktemp("shell"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, bash: Shell) -> Path:
    """The files of a reader, made by the first of the test processes."""
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
    """The pages that have such blocks; together, all but the README take long."""
    return [
        pytest.param(page, marks=[] if page.name == "README.md" else pytest.mark.slow) for page in pages(*languages)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", carried_out(*SHELLS), ids=name)
def test_commands_succeed_and_print_the_output_shown(page: Path, folder: Path, bash: Shell) -> None:
    """Blocks run one after another, as a reader of the page would run them."""
    for block in blocks(page):
        if block.language in SHELLS and block.is_run:
            done = bash.run(script_of(block), folder)
            assert done.code == 0, f"{block.place}: {done.code}\n{done.out[-500:]}\n{done.err[-2000:]}"
            if block.shown is not None:
                assert shape(block.shown) == shape(done.out), block.place


@pytest.mark.parametrize("page", pages(*SHELLS, is_run=False), ids=name)
def test_options_of_commands_that_are_not_run_exist(page: Path, folder: Path, bash: Shell) -> None:
    for block in blocks(page):
        if block.language in SHELLS and not block.is_run:
            done = bash.read(script_of(block), folder)
            assert not done.failed, f"{block.place}: {done.failed}{done.err[-2000:]}"


def script_of(block: Block) -> str:
    """The commands of a block; in `console`, those after a `$`."""
    code = block.code
    if block.language == "console":
        code = "\n".join(re.findall(r"^\$ (.*(?:\\\n.*)*)", code, re.MULTILINE))
    for word, stands_for in PLACEHOLDERS.items():
        code = re.sub(rf"\b{word}\b", stands_for, code)
    return code


def shape(printed: str) -> list[str]:
    """The printed lines with their numbers replaced by 0."""
    return [re.sub(r"\d[\d.,e+-]*", "0", line).rstrip() for line in printed.strip().splitlines()]


@pytest.mark.parametrize("page", carried_out("python"), ids=name)
def test_python_examples_print_the_output_shown(page: Path, folder: Path, bash: Shell) -> None:
    """Names that a block defines are available in later blocks."""
    onnx.save(two_branches(32, 28), folder / "model.onnx")
    run = [block for block in blocks(page) if block.language == "python" and block.is_run]
    (folder / "page.py").write_text(script_of_all(run))
    done = bash.run("python page.py", folder)
    assert done.code == 0, done.err[-2000:]
    for block, printed in zip(run, done.out.split(END), strict=False):
        assert block.shown is None or block.shown == printed, block.place


def script_of_all(run: list[Block]) -> str:
    """The blocks at their lines of the page; each is followed by a mark at the end of its output."""
    lines: list[str] = []
    for block in run:
        lines += [""] * (block.line - len(lines)) + block.code.splitlines() + [f"print({END!r}, end='')"]
    return "\n".join(lines)


@pytest.mark.parametrize("page", pages("json", "toml", "yaml"), ids=name)
def test_files_shown_in_pages_can_be_parsed(page: Path) -> None:
    read = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for block in blocks(page):
        if block.language in read:
            assert read[block.language](block.code), block.place


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_name_their_language_and_the_reason_for_not_being_run(page: Path) -> None:
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


def test_contributing_has_the_numbers_of_blocks_that_are_run_and_not_run() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert text == with_counts(text), "stale: run  python tests/support/doc_blocks.py"
