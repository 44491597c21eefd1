"""The onnxruntime baseline on a GPU emulated with the memory and a provider of the host."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from host_gpu import host_place

from iosched.models.errors import DeviceError
from iosched.profiler.baselines.gpu_openers import open_on_gpu
from iosched.runtime.cuda.onnxruntime import provider
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.reference import Reference


def test_onnxruntime_runs_on_inputs_that_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Mapping[str, object]] = []
    run = provider._run_bound

    def watched(session: object, binding: object, kept_alive: object) -> None:
        run(session, binding, kept_alive)
        runs.append({"outputs": binding.copy_outputs_to_cpu()})  # type: ignore[attr-defined]

    monkeypatch.setattr(provider, "_run_bound", watched)
    where = host_place()
    candidate = open_on_gpu(where)
    assert runs == []
    assert len(candidate.time(2)) == 2
    with Reference(where.model) as reference:
        expected = reference.run(where.inputs)
    (first,) = runs[0]["outputs"]  # type: ignore[misc]
    np.testing.assert_allclose(first, expected[where.model.graph.outputs[0]], rtol=1e-5)
    assert len(runs) == 2


def test_onnxruntime_refuses_fp16_and_a_missing_cuda_provider() -> None:
    with pytest.raises(DeviceError, match="not in fp16"):
        open_on_gpu(host_place("fp16"))
    with pytest.raises(DeviceError, match=r"no CUDA provider;.*pip install"):
        open_on_gpu(host_place(provider=Provider("CUDAExecutionProvider", "cuda")))
