"""A command line to call, in an empty working folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import onnx
import pytest
import standin_driver
from click.testing import CliRunner, Result
from small_models import branches
from terminals import WIDTHS, assert_nothing_is_lost, on_terminal

from iosched.cli.common import tables
from iosched.cli.main import cli
from iosched.jobs.settings import OptimizeSettings

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def _without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the GPUs that the driver of this machine reports."""
    standin_driver.none(monkeypatch)


@pytest.fixture(autouse=True)
def _tables_fit_every_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Redraws every table that a command prints on terminals of all widths, and checks that no text is lost."""
    found: list[tuple[str | None, partial[Any]]] = []
    show = tables._show

    def record(file: object, title: str | None, drawn_on: partial[Any]) -> None:
        found.append((title, drawn_on))
        show(file, title, drawn_on)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tables, "_show", record)
        yield
    with pytest.MonkeyPatch.context() as patch:
        for (title, drawn_on), width in product(found, WIDTHS):
            text = on_terminal(lambda terminal: show(terminal, title, drawn_on), width, patch, "dumb")  # type: ignore[arg-type] # noqa: B023
            assert_nothing_is_lost(text, [*cells_of(drawn_on), title or ""], width)


def cells_of(drawn_on: partial[Any]) -> Iterator[str]:
    """The cells of a table of pairs, or of headers and rows; empty columns are skipped."""
    *headers, rows = drawn_on.args
    for number, header in enumerate(*headers) if headers else ():
        if any(row[number] for row in rows):
            yield header
    yield from (cell for row in rows for cell in row)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, with a separate profile database."""
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
    """Asserts that a command failed with this exit code and a short message; returns its stderr."""

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
    """Makes `optimize` plan for kernels launched one by one, which only the Python API offers."""
    monkeypatch.setattr("iosched.jobs.settings.OptimizeSettings", partial(OptimizeSettings, launch="streams"))
