"""Modules are imported in another process, which may die of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.jobs.doctor import installation
from iosched.jobs.doctor.installation import why_not


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module that does this when it is imported."""

    def write(text: str) -> str:
        (tmp_path / "ailing.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "ailing"

    return write


def test_a_module_that_loads(module) -> None:
    assert why_not(module("print('words')")) is None


def test_the_last_line_says_why_it_does_not(module) -> None:
    assert why_not(module("import no_such_library")) == "ModuleNotFoundError: No module named 'no_such_library'"


def test_one_that_ends_its_process_ends_no_other(module) -> None:
    why = why_not(module("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert why is not None
    assert "SIGSEGV" in why


def test_one_that_leaves_without_a_word(module) -> None:
    assert why_not(module("raise SystemExit(3)")) == "exit code 3"


def test_one_that_hangs_is_given_up(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_IMPORT_SECONDS", 0.2)
    why = why_not(module("import time; time.sleep(60)"))
    assert why is not None
    assert "more than" in why


def test_a_file_in_the_working_folder_is_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    assert why_not("json") is None
