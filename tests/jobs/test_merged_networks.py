"""Models as they are written for a GPU that is not here: merged, and computing what the original does."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from light import NAMES, light_model

from iosched.jobs.annotate import annotated
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models import zoo
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference

MERGED = {"light_inception_v1", "light_inception_v2", "light_squeezenet"}
ZOO = ("inception_v3", "squeezenet", "googlenet", "randwire", "nasnet_a", "resnet50", "densenet121", "vgg16")
QUICK = ("light_inception_v2", "light_squeezenet")


def _network(name: str) -> onnx.ModelProto:
    return light_model(name) if name.startswith("light_") else zoo.build(name)


def _cases() -> list[object]:
    names = (*(f"light_{name}" for name in NAMES), *ZOO)
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("strategy", ["both", "merge"])
@pytest.mark.parametrize("name", _cases())
def test_the_written_model_computes_what_the_original_does(name: str, strategy: str) -> None:
    """light_inception_v2 has BatchNormalization, Mul, Add and Relu behind each of 69 convolutions."""
    model = load_model(_network(name).SerializeToString(), name=name, batch_size=1)
    found = optimize(model, OptimizeSettings(device="v100", strategy=strategy, profile_db=None))
    payload = write_model(annotated(model, found.document), model.weights, None)
    assert payload is not None
    merges = sum(node.op_type == "Split" for node in onnx.ModelProto.FromString(payload).graph.node)
    assert merges > 3 or name not in MERGED
    assert load_model(payload, name=name).digest == model.digest
    inputs = random_inputs(model.graph.inputs, 0)
    with Reference(model) as reference:
        checked = compare(_run(payload, inputs), reference.run(inputs))
    assert checked.passed, checked.reasons


def _run(payload: bytes, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(payload)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
