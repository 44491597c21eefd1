"""The package is marked as typed, and a typed script that uses it runs; `.ci/lint` checks it with mypy."""

from __future__ import annotations

import runpy
from pathlib import Path

import onnx
import pytest
from shipped import optimized_file
from small_models import branches

import iosched

HERE = Path(__file__).parent


def test_the_typed_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(branches("n"), "model.onnx")
    optimized_file(Path("model.iosched.onnx"), branches())
    runpy.run_path(str(HERE / "typed" / "public_api.py"))
    assert capsys.readouterr().out == "a model must be a path or bytes, not int\n'devise'\n"


def test_the_package_is_marked_as_typed() -> None:
    assert Path(iosched.__file__).with_name("py.typed").exists()
    assert "tests/typed/*.py" in (HERE.parent / ".ci" / "lint").read_text()
