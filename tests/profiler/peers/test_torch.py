"""PyTorch beside ours: where it is missing, or cannot run the model."""

from __future__ import annotations

import sys

import pytest
from host_gpu import host_place

from iosched.models.errors import DeviceError
from iosched.profiler.peers.openers import GPU_OPENERS


@pytest.mark.parametrize("name", ["torch", "torch-cudagraph", "torch-compile"])
def test_pytorch_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(DeviceError, match="onnx2torch is not installed; install it with"):
        GPU_OPENERS[name](host_place())


def test_pytorch_that_cannot_is_told() -> None:
    """Without a GPU PyTorch says so, in one line."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx2torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError) as told:
        GPU_OPENERS["torch"](host_place())
    assert len(str(told.value).splitlines()) == 1
