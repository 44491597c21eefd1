"""PyTorch as a peer, when it is not installed or cannot run the model."""

from __future__ import annotations

import sys

import pytest
from host_gpu import host_place

from iosched.models.errors import DeviceError
from iosched.profiler.peers.openers import GPU_OPENERS


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
