"""Other runtimes beside ours on a GPU: how they are opened and timed, on memory and providers of the host."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
import pytest
from host_driver import HostDriver
from scripted import fire

from iosched.models.errors import DeviceError
from iosched.profiler.peers import onnxruntime as peer
from iosched.profiler.peers.onnxruntime import open_on_gpu
from iosched.profiler.peers.openers import GPU_OPENERS
from iosched.profiler.peers.place import GpuPlace
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.inputs import random_inputs

HOST = Provider("CPUExecutionProvider", "cpu", takes_stream=False)


def place(precision: str = "fp32", provider: Provider = HOST) -> GpuPlace:
    model = fire(batch=2)
    return GpuPlace(model, random_inputs(model.graph.inputs), Precision(precision), HostDriver(), provider)


def test_onnxruntime_runs_on_inputs_that_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Mapping[str, object]] = []
    run = peer._run_bound

    def watched(session: object, binding: object) -> None:
        run(session, binding)
        runs.append({"outputs": binding.copy_outputs_to_cpu()})  # type: ignore[attr-defined]

    monkeypatch.setattr(peer, "_run_bound", watched)
    where = place()
    candidate = open_on_gpu(where)
    assert runs == []
    assert candidate.time(1)[0] >= 0
    assert candidate.time(1)[0] >= 0
    from iosched.runtime.reference import Reference

    with Reference(where.model) as reference:
        expected = reference.run(where.inputs)
    (first,) = runs[0]["outputs"]  # type: ignore[misc]
    np.testing.assert_allclose(first, expected[where.model.graph.outputs[0]], rtol=1e-5)
    assert len(runs) == 2


def test_onnxruntime_does_not_pretend() -> None:
    with pytest.raises(DeviceError, match="not in fp16"):
        open_on_gpu(place("fp16"))
    with pytest.raises(DeviceError, match=r"no CUDA provider here.*pip install"):
        open_on_gpu(place(provider=Provider("CUDAExecutionProvider", "cuda")))


@pytest.mark.parametrize("name", ["torch", "torch-cudagraph", "torch-compile"])
def test_pytorch_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(DeviceError, match="onnx2torch is not installed; install it with"):
        GPU_OPENERS[name](place())


def test_pytorch_that_cannot_is_told() -> None:
    """Without a GPU PyTorch says so, in one line."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx2torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError) as told:
        GPU_OPENERS["torch"](place())
    assert len(str(told.value).splitlines()) == 1
