"""Standard streams that are closed at process start act as /dev/null, and an oversized stdin is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iosched.cli.common import source


def ended(number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `iosched` in a separate process that starts with this stream closed."""
    command = [sys.executable, "-m", "iosched", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, preexec_fn=lambda: os.close(number)
    )


@pytest.mark.parametrize(
    "number",
    [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)],
    ids=["stdin", "stdout", "stderr"],
)
def test_optimize_succeeds_with_a_closed_stream(model: Path, number: int) -> None:
    found = ended(
        number, "optimize", str(model), "--threads", "2", "--budget", "0.01", "--profile-db", "p.sqlite", "--json"
    )
    assert (found.returncode, "internal" in found.stderr) == (0, False)
    assert bool(found.stdout) == (number != 1)
    assert Path("p.sqlite").read_bytes()[:6] == b"SQLite"  # which would reuse the descriptor of the stream otherwise


def test_a_closed_stdin_is_empty() -> None:
    found = ended(0, "inspect", "-")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "standard input is empty" in found.stderr


def test_an_oversized_stdin_is_refused(
    invoke: Callable[..., object], complains: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_PROTO_NBYTES", 2**21)
    complains(invoke("inspect", "-", stdin=bytes(2**21 + 1)), 2, "standard input exceeds 2 GB")
    complains(invoke("inspect", "-", stdin=bytes(2**21)), 2, "is not an ONNX model")
