"""`iosched matrix` on two GPUs: CuPy and cuDNN's frontend on a CUDA made of host memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import desk_cudnn
import desk_cupy
import onnx
import pytest
from small_models import branches

_MISSING = desk_cupy.missing()
if _MISSING is None:
    desk_cupy.install()  # before anybody imports CuPy; cuDNN needs its driver for a description of a GPU
    _MISSING = desk_cudnn.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The handles of cuDNN, on two GPUs with different names, which share no measurements."""
    with desk_cupy.two_gpus() as desk:
        desk.names = {1: b"NVIDIA Other"}
        yield desk_cudnn.install(monkeypatch, desk)


def model(folder: Path) -> Path:
    onnx.save(branches("n"), folder / "m.onnx")
    return folder / "m.onnx"


def test_schedules_of_each_gpu_are_measured_on_both(invoke, handles: list[Any], tmp_path: Path) -> None:
    asked = "matrix", model(tmp_path), "--device", "cuda:0,cuda:1", "--batch-sizes", "1,2", "--json"
    result = invoke(*asked)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(each["device"], each["name"], each["batch_size"], each["cost"]) for each in found["targets"]] == [
        (device, name, batch, "measured")
        for device, name in (("cuda:0", "NVIDIA Desk"), ("cuda:1", "NVIDIA Other"))
        for batch in (1, 2)
    ]
    assert all(us > 0 for row in found["latency_us"] for us in row)
    assert all(row[own] == min(row) for own, row in enumerate(found["latency_us"]))
    used = [handle._ordinal for handle in handles]
    assert {*used} == {0, 1}
    again = json.loads(invoke(*asked).stdout)  # from the database
    assert again["latency_us"] == found["latency_us"]


@pytest.mark.slow
def test_two_gpus_a_cpu_and_a_simulated_gpu_are_one_table(invoke, handles: list[Any], tmp_path: Path) -> None:
    result = invoke("matrix", model(tmp_path), "--device", "cuda:1,cuda:0,cpu,v100", "--batch-size", 1)
    assert result.exit_code == 0, result.stderr
    for name in ("cuda:1", "cuda:0", "cpu", "v100"):
        assert name in result.stdout


def test_a_third_gpu_is_missing(invoke, complains, handles: list[Any], tmp_path: Path) -> None:
    result = invoke("matrix", model(tmp_path), "--device", "cuda:0,cuda:2", "--batch-size", 1)
    complains(result, 3, "there is no GPU 2: this machine has 2")


@pytest.mark.slow
def test_models_are_ranked_on_both(invoke, handles: list[Any], tmp_path: Path) -> None:
    result = invoke("rank", model(tmp_path), "--device", "cuda:0,cuda:1", "--batch-size", 1, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["device"], row["cost"], row["error"]) for row in rows] == [
        ("cuda:0", "measured", None), ("cuda:1", "measured", None),
    ]  # fmt: skip
    assert {handle._ordinal for handle in handles} == {0, 1}
