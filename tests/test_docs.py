"""The documentation matches the program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from iosched.cli.common.errors import BROKEN_PIPE, EXIT_CODES, FAILED, INTERRUPTED
from iosched.cli.main import COMMANDS
from iosched.cli.reference import pages
from iosched.profiler.store.tables import ROW_TYPES, table_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "|".join(
    path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"
)
PATH = rf"(?<![\w./-])(?:{FOLDERS}|\.ci)/[\w./*{{}},-]*"


def test_the_command_line_reference_matches_the_help() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "docs" / "cli").glob("*.md")}
    assert written == pages(), "stale: run  python -m iosched.cli.reference"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page_and_is_in_a_guide(command: str) -> None:
    assert pages()[f"{command}.md"].startswith(f"# iosched {command}\n")
    assert f"]({command}.md)" in pages()["README.md"]
    assert any(f"iosched {command}" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_command_installs_iosched_by_name_from_an_index() -> None:
    folders = ("api", "cli", "jobs", "models", "profiler", "runtime", "scheduler", "docs", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".md")]
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *files):
        assert not re.search(r"pip install (-\S+ )*['\"]?iosched\b(?!-VERSION|\S* @ git)", path.read_text()), path


def test_every_gpu_is_listed_among_the_devices() -> None:
    page = (ROOT / "docs" / "devices.md").read_text()
    gpus = json.loads((ROOT / "profiler" / "devices" / "gpus.json").read_text())["gpus"]
    assert re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page, re.MULTILINE) == [
        (key, gpu["name"]) for key, gpu in gpus.items()
    ]


def test_metadata_keys_tables_and_schedule_keys_are_documented() -> None:
    page = (ROOT / "docs" / "files.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "models").rglob("*.py"))
    assert all(f"`{key}`" in page for key in re.findall(r'_KEY = "(io\.iosched\.\w+)"', sources))
    assert all(f"| `{table_of(kind)}` |" in page for kind in ROW_TYPES)
    schema = json.loads((ROOT / "docs" / "schedule.schema.json").read_text())
    keys = set(re.findall(r"`(\w+)`", page.split("## Optimized models")[0]))
    assert set(schema["$defs"]["schedule"]["properties"]) | set(schema["$defs"]["schedules"]["properties"]) <= keys


def test_every_exit_code_is_documented() -> None:
    table = (ROOT / "docs" / "exit-codes.md").read_text()
    for code in {code for _, code in EXIT_CODES} | {0, FAILED, INTERRUPTED, BROKEN_PIPE}:
        assert f"| {code} |" in table


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_paths_inside_the_repository_exist(page: Path) -> None:
    """Paths in backticks, and scripts anywhere; NAME and NNNN are placeholders.

    A source file may be named without its folder, as in a table of one folder.
    """
    text = page.read_text()
    quoted = {path for words in re.findall(r"`([^`\n]+)`", text) for path in re.findall(PATH, words)}
    scripts = {path for path in re.findall(PATH, text) if path.endswith(".py")}
    named = {path for path in quoted | scripts if not re.search("NAME|NNNN", path)}
    nearby = {path for path in named if any(page.parent.glob(path))}  # docs/examples next to docs/exploring.md
    assert not {path for path in named - nearby if not all(any(ROOT.glob(one)) for one in _spelled_out(path))}
    files = {path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.*")}
    assert set(re.findall(r"`([\w-]+\.(?:py|cpp|h))`", text)) <= files


def _spelled_out(path: str) -> list[str]:
    """`a_{b,c}` is `a_b` and `a_c`."""
    if (braces := re.search(r"{(.*)}", path)) is None:
        return [path.rstrip("/.,")]
    return [path[: braces.start()] + each + path[braces.end() :] for each in braces[1].split(",")]


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_names_are_in_the_files_that_guides_state(page: Path) -> None:
    for name, path in re.findall(r"`(\w+)` (?:in|of) `([\w./]+\.py)`", page.read_text()):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{page.name}: {name} in {path}"
