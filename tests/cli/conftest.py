"""A command line to call, in an empty working folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx
import pytest
import standin_driver
from click.testing import CliRunner, Result
from small_models import branches
from terminals import assert_all_widths_show, recorded

from iosched.cli.main import cli
from iosched.jobs.settings import OptimizeSettings

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def _without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver of this machine says of its GPUs is left out."""
    standin_driver.none(monkeypatch)


@pytest.fixture(autouse=True)
def _tables_fit_every_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every table that a command prints in these tests is drawn on terminals of all widths, too, and loses nothing."""
    found, show = recorded(monkeypatch)
    yield
    assert_all_widths_show(found, show)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, and a profile database of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("IOSCHED_PROFILE_DB", str(tmp_path / "profile.sqlite"))
    return folder


@pytest.fixture
def invoke(workdir: Path) -> Invoke:
    """Calls `iosched` with the given words in an empty working folder."""

    def call(*words: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words], input=stdin, prog_name="iosched")

    return call


@pytest.fixture
def model(workdir: Path) -> Path:
    """`branches.onnx` in the working folder."""
    path = workdir / "branches.onnx"
    onnx.save(branches(), path)
    return path


@pytest.fixture
def complains() -> Callable[..., str]:
    """Asserts that a command was refused the way people are told about it; returns what stood on stderr."""

    def check(result: Result, code: int, *words: str) -> str:
        assert result.exit_code == code, (result.stderr, result.exception)
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert 1 <= len(lines) <= 5, result.stderr
        assert "Traceback" not in result.stderr
        for word in words:
            assert word in result.stderr
        return result.stderr

    return check


@pytest.fixture
def in_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """`optimize` plans for kernels launched one by one, which only Python asks for."""
    monkeypatch.setattr("iosched.jobs.settings.OptimizeSettings", partial(OptimizeSettings, launch="streams"))
