"""Runs the scripts in `examples/` as a user does, in a folder of their own."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def environment() -> dict[str, str]:
    """The environment for a process, with a profile database that is gone afterwards, and few threads."""
    return {**os.environ, "IOSCHED_PROFILE_DB": ":memory:", "OMP_NUM_THREADS": "1"}


def run_example(path: Path, *words: object, folder: Path) -> str:
    """What a script prints on stdout; it runs in this process, where what it imports may be imported already."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setenv("IOSCHED_PROFILE_DB", ":memory:")
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(path), *map(str, words)])
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()
