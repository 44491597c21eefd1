"""Small models for the import's tests, and a way to run what came out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from iosched.models.model import Model

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
FLOAT = TensorProto.FLOAT
Shape = Sequence[int | str | None]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32) * 0.3


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape | None],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
    dtype: int = FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def data(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString()


def with_weights(model: Model) -> bytes:
    """The working graph as one self-contained file."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.initializer[:]
    arrays = ((name, np.ascontiguousarray(array).reshape(array.shape)) for name, array in model.weights.items())
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays)
    return proto.SerializeToString()


def run(model: bytes | str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip((item.name for item in session.get_outputs()), session.run(None, dict(feeds)), strict=True))


def feeds_for(model: Model, seed: int = 1) -> dict[str, np.ndarray]:
    random = rng(seed)
    specs = {spec.name: spec for spec in model.graph.inputs}
    return {
        name: random.standard_normal(shape).astype(specs[name].dtype)
        if "float" in specs[name].dtype
        else random.integers(0, 2, shape).astype(specs[name].dtype)
        for name, shape in model.bindings.items()
    }


def units(model: Model) -> list[tuple[str, int]]:
    """(type, number of nodes) of each operator."""
    return [(operator.type, len(operator.nodes)) for operator in model.graph.operators]
