"""Models that onnxruntime runs are optimized and ranked, and iosched's plans for them compute the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from accepted_models import MODELS, recurrent_without_its_first_result
from click.testing import Result

WORDS = ("--threads", 2, "--strategy", "sequential", "--budget", 0.2, "--strict")


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_optimize_and_run(invoke: Callable[..., Result], workdir: Path, make: Callable[[], onnx.ModelProto]) -> None:
    onnx.save(make(), workdir / "m.onnx")
    done = invoke("optimize", "m.onnx", *WORDS, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["latency_us"]["sequential"] > 0

    done = invoke("run", "m.iosched.onnx", "--check-schedule", "--json", "--threads", 2)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["check"]["passed"]


def test_rank(invoke: Callable[..., Result], workdir: Path) -> None:
    onnx.save(recurrent_without_its_first_result(), workdir / "m.onnx")
    done = invoke("rank", "m.onnx", "--device", "cpu", "--threads", 2, "--measure", "stages", "--json")
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["latency_us"] > 0
