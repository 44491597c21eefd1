"""Counts and limits of `.ci/size`."""

from __future__ import annotations

import importlib.util
import subprocess
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).parents[2]
CODE = '''"""A docstring."""

# A comment.
x = (
    1,  # another
)


def f():
    """Says more."""
    return "text"
'''


@pytest.fixture(scope="module")
def size() -> ModuleType:
    loader = SourceFileLoader("size", str(TOP / ".ci" / "size"))
    spec = importlib.util.spec_from_loader("size", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_python_lines_are_counted_without_comments_and_docstrings(size: ModuleType) -> None:
    assert size.code_lines("a.py", CODE) == ["x = (", "    1,  # another", ")", "def f():", '    return "text"']


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [("a.cpp", "// no\n/* no\n no */\nint a;\n\n", ["int a;"]), ("a.toml", "# no\n\na = 1\n", ["a = 1"])],
)
def test_empty_lines_and_comments_of_other_files_are_not_counted(
    size: ModuleType, name: str, text: str, lines: list[str]
) -> None:
    assert size.code_lines(name, text) == lines


def test_each_file_counts_in_one_row(size: ModuleType) -> None:
    files = {
        "cli/a.py": CODE,
        "jobs/b.js": "let a\n",
        "jobs/c.css": "a {}\n",
        "tests/t.py": CODE,
        "docs/d.md": "two words",
    }
    assert size.counted(files | {"benchmarks/results/r.json": "1\n", "setup.cfg": "a\n"}) == {
        "product": {"files": 2, "code": 6, "chars": 7.5},
        "  cli": {"files": 1, "code": 5},
        "  jobs": {"files": 1, "code": 1},
        "shipped data": {"files": 1, "code": 1, "chars": 4.0},
        "tests": {"files": 1, "code": 5, "chars": 8.0},
        "scripts and settings": {"files": 1, "code": 1, "chars": 1.0},
        "pages": {"files": 1, "words": 2},
    }


def test_every_tracked_text_file_is_counted_or_a_known_exception(size: ModuleType) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=TOP, check=True, capture_output=True, text=True).stdout.split("\n")
    left_out = {name for name in listed if name and size.row_of(name) is None}
    assert {name for name in left_out if not name.startswith("benchmarks/results/")} <= {
        "LICENSE",
        ".gitignore",
        *(name for name in left_out if name.endswith((".png", ".svg"))),
    }


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"product": {"code": 5, "chars": 10}}, []),
        ({"product": {"code": 4, "chars": 10}}, ["product: 5 code, .ci/size.toml allows 4"]),
        ({"product": {"code": 5, "chars": 9.8}}, []),
        ({"product": {"code": 5, "chars": 9.7}}, ["product: 10.0 chars, .ci/size.toml allows 9.7"]),
        ({"product": {"code": 5}}, ["product: 10.0 chars, .ci/size.toml has no limit"]),
        ({}, ["product: 5 code, .ci/size.toml has no limit", "product: 10.0 chars, .ci/size.toml has no limit"]),
    ],
)
def test_sizes_above_their_limit_or_without_one_are_reported(
    size: ModuleType, limits: dict[str, dict[str, float]], said: list[str]
) -> None:
    assert size.above({"product": {"code": 5, "chars": 10.0}, "  cli": {"code": 5}}, limits) == said
