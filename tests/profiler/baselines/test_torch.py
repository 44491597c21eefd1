"""PyTorch as a peer, when it is not installed or cannot run the model."""

from __future__ import annotations

import importlib
import sys

import fake_torch
import numpy as np
import pytest
from host_gpu import host_place

from iosched.models.errors import DeviceError
from iosched.profiler.baselines.gpu_openers import GPU_OPENERS
from iosched.runtime.cuda.kernel import Precision


@pytest.mark.parametrize("name", ["torch", "torch-cudagraph", "torch-compile"])
def test_pytorch_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(DeviceError, match="onnx2torch is not installed; install it with"):
        GPU_OPENERS[name](host_place())


def test_pytorch_that_cannot_run_the_model_is_reported() -> None:
    """PyTorch reports in one line that there is no GPU."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx2torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError) as error:
        GPU_OPENERS["torch"](host_place())
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("faster", [fake_torch.FIRST, fake_torch.LAST])
@pytest.mark.parametrize("way", ["torch", "torch-cudagraph", "torch-compile"])
def test_pytorch_runs_in_the_layout_that_is_faster(monkeypatch: pytest.MonkeyPatch, way: str, faster: str) -> None:
    clock, compiled = fake_torch.install(monkeypatch)
    open_way = importlib.import_module("iosched.profiler.baselines.torch_runs").open_way
    latency_us = {fake_torch.FIRST: 20.0, fake_torch.LAST: 20.0, faster: 10.0}
    network = fake_torch.Network(clock, latency_us, host_us=100.0)
    run = open_way(way, network, [np.zeros((1, 3, 8, 8), np.float32)], Precision("fp32"))
    assert run.layout == f"channels {faster}"
    each_us = 10.0 if way == "torch-cudagraph" else 110.0
    assert run.time(3) == pytest.approx((each_us,) * 3)
    assert compiled == ([faster] if way == "torch-compile" else []), "compiling takes minutes"
