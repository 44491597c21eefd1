"""A wrong operator is named on a GPU as well, here one that is made of host memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from host_cuda import needs_compiler
from host_gpu import HostGpu, attach_host, time_by_size
from scripted import fire
from shipped import document

from iosched.jobs.optimize import optimize
from iosched.jobs.run import run
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import MismatchError
from iosched.models.model import Model
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.inputs import random_inputs

pytestmark = needs_compiler


@pytest.fixture
def wrong_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU gets other weights of the convolution `gs` than the model has."""
    attach_host(monkeypatch)
    backend = HostGpu.backend

    def wrong(self: HostGpu, model: Model, *args: object) -> CudaBackend:
        return backend(self, changed(model, model.graph.by_name["gs"].weights[0].name), *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HostGpu, "backend", wrong)


def changed(model: Model, name: str) -> Model:
    array = model.weights[name] + np.float32(0.5)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name == name and tensor.data_location != onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return replace(model, proto=proto, weights={**model.weights, name: array})


def test_run_names_it(wrong_weight: None) -> None:
    model = fire()
    way = replace(document(model), device={"kind": "cuda", "name": "Host 1000"})
    found = run(model, way, random_inputs(model.graph.inputs), reference=model, device="cuda").first_difference
    assert found is not None
    assert (found.operator, found.unseen, found.cause) == ("gs", (), "runtime")


def test_optimize_writes_nothing_and_names_it(
    wrong_weight: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_by_size(monkeypatch)
    with pytest.raises(
        MismatchError, match=r"output 'gc' differs by(.|\n)*The first operator that differs is Conv 'gs'"
    ):
        optimize(fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db"))
