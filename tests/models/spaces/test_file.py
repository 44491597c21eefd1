"""Spaces in Python files: executed, with errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.models.errors import UsageError
from iosched.models.spaces.space import find_space, read_space

GOOD = """
from __future__ import annotations

from dataclasses import dataclass

from iosched.models.spaces.space import Space


@dataclass(frozen=True)
class Nothing:
    name: str = "nothing"

    def match(self, graph):
        return []

    def mutate(self, targets, edit):
        pass


space = Space("mine", (Nothing(),))
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "space.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_is_executed_and_its_space_returned(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    assert read_space(path).name == find_space(str(path)).name == "mine"
    assert list(tmp_path.iterdir()) == [path], "nothing is left next to the file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (\n", "space.py, line 2: '(' was never closed"),
        ("x = 1\n\nprint(nothing)\n", "space.py, line 3: NameError: name 'nothing' is not defined"),
        ("import json\njson.loads('')\n", "space.py, line 2: JSONDecodeError: "),
        ("import sys\nsys.exit()\n", "space.py, line 2: SystemExit"),
        ("open('no-such-file')\n", "space.py, line 1: FileNotFoundError: "),
        (GOOD.replace("(Nothing(),)", "()"), "space.py, line 20: space 'mine' has no mutators"),
        ("spaces = 1\n", "space.py defines no `space`"),
        ("space = 'mine'\n", "`space` must be an iosched.Space, not str"),
        (b"x = 1\0\n", "space.py"),
        (b"x = '\xff'\n", "space.py"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_space(written(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.py cannot be read: No such file"):
        read_space(tmp_path / "none.py")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_space(tmp_path)
