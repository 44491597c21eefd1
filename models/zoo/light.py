"""The `light_*` models of the onnx package, a few KB each, with seeded random weights.

Their own weights are constants, so every class gets the same probability, and wrong schedules would go unnoticed.
"""

from __future__ import annotations

import zlib
from functools import cache
from math import prod, sqrt
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from iosched.models.errors import DeviceError

NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
_FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"


def light_model(name: str) -> onnx.ModelProto:
    """Model `name` (with or without "light_") with He-initialized weights, always the same.

    A final Softmax, which saturates, is removed, so that its input shows errors.

    Raises:
        DeviceError: the installed onnx has no such model.
    """
    model = onnx.ModelProto()
    model.ParseFromString(_built(name.removeprefix("light_")))
    return model


@cache
def _built(name: str) -> bytes:
    try:
        model = onnx.load(_FOLDER / f"light_{name}.onnx")
    except FileNotFoundError as error:
        raise DeviceError(
            f"the installed onnx lacks light_{name}.onnx; run pip install --force-reinstall onnx"
        ) from error
    graph = model.graph
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = _constant_shapes(graph, known)
    roles = _roles(graph)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    for tensor in [*shapes]:
        array = _weight(random, roles.get(tensor, ("", 0)), shapes[tensor])
        graph.initializer.append(numpy_helper.from_array(array, tensor))
    kept = [node for node in graph.node if node.output[0] not in shapes]
    del graph.node[:]
    graph.node.extend(kept)
    _expose_logits(graph)
    _drop_unread(graph)
    return bytes(model.SerializeToString())


def _constant_shapes(graph: onnx.GraphProto, known: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {
        node.output[0]: tuple(int(size) for size in known[node.input[0]])
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }


def _roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    return {name: (node.op_type, place) for node in graph.node for place, name in enumerate(node.input)}


def _weight(random: np.random.Generator, role: tuple[str, int], shape: tuple[int, ...]) -> np.ndarray:
    values = random.standard_normal(shape, dtype=np.float32)
    if role in (("Conv", 1), ("Gemm", 1), ("MatMul", 1), ("Reshape", 0)):
        return values * np.float32(sqrt(2 / max(prod(shape[1:]), 1)))
    if role == ("BatchNormalization", 4):
        return 1 + np.abs(values) * np.float32(0.1)
    if role in (("BatchNormalization", 1), ("Mul", 0), ("Mul", 1)):
        return 1 + values * np.float32(0.1)
    return values * np.float32(0.05)


def _expose_logits(graph: onnx.GraphProto) -> None:
    last = next(node for node in graph.node if node.output[0] == graph.output[0].name)
    if last.op_type != "Softmax":
        return
    graph.node.remove(last)
    dims = [dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim]
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, dims))


def _drop_unread(graph: onnx.GraphProto) -> None:
    read = {name for node in graph.node for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    inputs = [info for info in graph.input if info.name in read]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(tensors)
    graph.input.extend(inputs)
