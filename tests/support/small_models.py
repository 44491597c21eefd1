"""Small ONNX models for tests: how to build and load them, how to run them on plain onnxruntime, and common ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from iosched.models.load import load_model
from iosched.models.model import Model

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
FLOAT = TensorProto.FLOAT
LINE, SOLID = (31,), (5, 6, 7)
"""Images of one and of three dimensions, for `conv_network`."""

Shape = Sequence[int | str | None]
Weights = Mapping[str, np.ndarray]

node = helper.make_node


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    """float32 of a normal distribution, so scaled that products of a unit input stay near one."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return (values / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32)


def proto_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape | tuple[int, Shape] | None],
    outputs: Sequence[str] | Mapping[str, int],
    weights: Weights | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
    dtype: int = FLOAT,
    name: str = "test",
) -> onnx.ModelProto:
    """A model; inputs are of `dtype` unless (type, shape) says otherwise, outputs unless a mapping does."""
    typed = {
        key: what if isinstance(what, tuple) and _is_typed(what) else (dtype, what) for key, what in inputs.items()
    }
    kinds = outputs.items() if isinstance(outputs, Mapping) else [(key, dtype) for key in outputs]
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in typed.items()],
        [helper.make_tensor_value_info(key, kind, None) for key, kind in kinds],
        [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def _is_typed(what: tuple[object, ...]) -> bool:
    return len(what) == 2 and isinstance(what[1], list | tuple)


def data(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString()


def loaded(proto: onnx.ModelProto, name: str = "test", batch_size: int | None = None) -> Model:
    """The model of a file of this name."""
    return load_model(data(proto), name=name, batch_size=batch_size)


def with_weights(model: Model) -> bytes:
    """The working graph as one self-contained file."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.initializer[:]
    arrays = ((name, np.ascontiguousarray(array).reshape(array.shape)) for name, array in model.weights.items())
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays)
    return data(proto)


def run(model: bytes | str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name, on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip((item.name for item in session.get_outputs()), session.run(None, dict(feeds)), strict=True))


def feeds_for(model: Model, seed: int = 1) -> dict[str, np.ndarray]:
    """Random inputs; whole numbers are 0 or 1."""
    random = np.random.default_rng(seed)
    dtypes = {spec.name: spec.dtype for spec in model.graph.inputs}
    return {
        name: (random.standard_normal(shape) if "float" in dtypes[name] else random.integers(0, 2, shape)).astype(
            dtypes[name]
        )
        for name, shape in model.bindings.items()
    }


def units(model: Model) -> list[tuple[str, int]]:
    """(type, number of nodes) of each operator."""
    return [(operator.type, len(operator.nodes)) for operator in model.graph.operators]


def branches(batch: int | str = 1, channels: int = 8) -> onnx.ModelProto:
    """Two convolutions side by side, a Relu behind one, and their Concat."""
    random = np.random.default_rng(1)
    weights = {
        f"w{kernel}": random.standard_normal((channels, channels, kernel, kernel)).astype(np.float32) / channels
        for kernel in (1, 3)
    }
    nodes = [
        node("Conv", ["x", "w1"], ["a"], kernel_shape=[1, 1]),
        node("Conv", ["x", "w3"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["c"]),
        node("Concat", ["c", "b"], ["y"], axis=1),
    ]
    return proto_of(nodes, {"x": [batch, channels, 6, 6]}, ["y"], weights, name="branches")


def chain(seed: int = 0, *, channels: int = 4, kind: str = "Relu", opset: int = 17) -> onnx.ModelProto:
    """conv -> `kind` -> conv -> softmax, with weights that depend on `seed`."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node(kind, ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"]),
        node("Softmax", ["c"], ["y"], axis=1),
    ]
    weights = {"w": weight(channels, 4, 3, 3, seed=seed), "v": weight(4, channels, 1, 1, seed=seed + 100)}
    return proto_of(nodes, {"x": [1, 4, 12, 12]}, ["y"], weights, opset=opset)


def headed(seed: int = 0) -> onnx.ModelProto:
    """The backbone that all models share, and a head that depends on `seed`."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["y"]),
    ]
    weights = {"w": weight(4, 4, 3, 3, seed=7), "v": weight(4, 4, 1, 1, seed=seed)}
    return proto_of(nodes, {"x": [1, 4, 12, 12]}, ["y"], weights)


def crossed(width: int, depth: int) -> Model:
    """Layers of products, each of two neighbors in the layer before; the last layer is summed up."""
    nodes = [helper.make_node("Relu", ["x"], [f"y0.{column}"]) for column in range(width)]
    for row in range(1, depth):
        for column in range(width):
            reads = [f"y{row - 1}.{column}", f"y{row - 1}.{(column + 1) % width}"]
            nodes.append(helper.make_node("Mul", reads, [f"y{row}.{column}"]))
    nodes.append(helper.make_node("Sum", [f"y{depth - 1}.{column}" for column in range(width)], ["y"]))
    return loaded(proto_of(nodes, {"x": [2, 8]}, {"y": FLOAT}))


def chains(count: int) -> dict[str, Model]:
    """`count` chains, named a, b, c and so on."""
    return {name: loaded(chain(seed), name) for seed, name in enumerate("abcdefgh"[:count])}


def fused_chain() -> onnx.ModelProto:
    """Gelu written out: one node for five operators."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Div", ["m", "root2"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["m", "p"], ["q"]),
        node("Mul", ["q", "half"], ["g"]),
        node("Sigmoid", ["x"], ["s"]),
        node("MatMul", ["g", "v"], ["y"]),
        node("Add", ["y", "s"], ["z"]),
    ]
    scalars = {name: np.float32([value]) for name, value in {"root2": 2**0.5, "one": 1.0, "half": 0.5}.items()}
    return proto_of(nodes, {"x": (1, 6, 16)}, ["z"], {**scalars, "w": weight(16, 32), "v": weight(32, 16)})


def separables() -> Model:
    """Two Relu-SepConv operators, whose sum goes into a third of another size with batch normalization behind it."""
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def add(x: str, y: str, size: int) -> None:
        weights[f"{y}d"], weights[f"{y}db"] = weight(8, 1, size, size), weight(8, 1)[:, 0]
        weights[f"{y}p"], weights[f"{y}pb"] = weight(8, 8, 1, 1), weight(8, 1, seed=1)[:, 0]
        nodes.append(node("Relu", [x], [f"{y}r"]))
        nodes.append(node("Conv", [f"{y}r", f"{y}d", f"{y}db"], [f"{y}m"], pads=[size // 2] * 4, group=8))
        nodes.append(node("Conv", [f"{y}m", f"{y}p", f"{y}pb"], [y]))

    add("x", "a", 3)
    add("x", "b", 3)
    nodes.append(node("Add", ["a", "b"], ["s"]))
    add("s", "c", 5)
    values = [1 + np.abs(weight(8, 1, seed=seed)[:, 0]) for seed in range(4)]
    weights |= dict(zip(("gamma", "beta", "mean", "variance"), values, strict=True))
    nodes.append(node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["y"]))
    return loaded(proto_of(nodes, {"x": (2, 8, 7, 7)}, ["y"], weights))


def separable_operators(model: Model) -> list[str]:
    return [each.name for each in model.graph.operators if each.type == "ReluSepConv"]


def sliced() -> Model:
    """LpNormalization of a part of one Concat into a part of another, and TopK of it: no CUDA kernel does these."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Sigmoid", ["x"], ["b"]),
        node("Concat", ["b", "a"], ["c"], axis=1),
        node("LpNormalization", ["a"], ["n"], axis=1, p=1),
        node("Concat", ["n", "b"], ["d"], axis=1),
        node("TopK", ["n", "k"], ["top", "at"], axis=3),
        node("Relu", ["d"], ["e"]),
        node("Exp", ["top"], ["t"]),
    ]
    outputs = {**dict.fromkeys("cet", FLOAT), "at": TensorProto.INT64}
    return loaded(proto_of(nodes, {"x": (2, 3, 4, 5)}, outputs, {"k": np.array([2], np.int64)}))


def conv_network(space: tuple[int, ...], batch: int) -> Model:
    """Convolutions, normalized, depthwise, pointwise, grouped, with a residual that is an operand of a Concat too."""
    nodes: list[onnx.NodeProto] = []
    weights = {name: np.abs(weight(8, seed=seed)) + 0.1 for seed, name in enumerate("gsmv")}

    def conv(x: str, y: str, size: int, channels: int = 8, group: int = 1) -> None:
        weights[f"{y}/w"] = weight(channels, 8 // group, *(size,) * len(space), seed=len(nodes))
        weights[f"{y}/b"] = weight(channels, seed=len(nodes))
        pads = [size // 2] * (2 * len(space))
        nodes.append(node("Conv", [x, f"{y}/w", f"{y}/b"], [y], pads=pads, group=group))

    def add(kind: str, *inputs: str, to: str, **attributes: object) -> None:
        nodes.append(node(kind, list(inputs), [to], **attributes))

    conv("x", "c", 3)
    add("BatchNormalization", "c", "g", "s", "m", "v", to="normal")
    add("Relu", "normal", to="r")
    conv("r", "d", 3, group=8)
    conv("d", "p", 1)
    add("Relu", "p", to="q")
    conv("q", "e", 3, group=2)
    add("Add", "e", "q", to="sum")
    add("Relu", "sum", to="h")
    conv("h", "narrow", 1, 4)
    conv("h", "wide", 3, 4)
    add("Concat", "narrow", "wide", "q", "h", to="all", axis=1)
    add("GlobalAveragePool", "all", to="y")
    return loaded(proto_of(nodes, {"x": (batch, 8, *space)}, ["y"], weights))


SHAPE = [1, 4, 5, 5]
KINDS = {"Relu": 1, "Tanh": 1, "MaxPool": 1, "Conv1": 1, "Conv3": 1, "SepConv": 1, "Add": 2, "Sub": 2, "Join": 2}
"""How many tensors a layer of each kind reads."""


def _layer(kind: str, reads: list[str], name: str) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    if kind == "MaxPool":
        return [node(kind, reads, [name], kernel_shape=[3, 3], pads=[1] * 4)], {}
    if kind in ("Conv1", "Conv3"):
        size = int(kind[-1])
        conv = node("Conv", [*reads, f"{name}w"], [name], pads=[size // 2] * 4, dilations=[1, 1])
        return [conv], {f"{name}w": weight(4, 4, size, size)}
    if kind == "Join":
        nodes = [node("Concat", reads, [f"{name}j"], axis=1), node("Conv", [f"{name}j", f"{name}w"], [name])]
        return nodes, {f"{name}w": weight(4, 8, 1, 1)}
    if kind == "SepConv":
        nodes = [
            node("Relu", reads, [f"{name}r"]),
            node("Conv", [f"{name}r", f"{name}d"], [f"{name}e"], group=4, pads=[1] * 4, dilations=[1, 1]),
            node("Conv", [f"{name}e", f"{name}p"], [name]),
        ]
        return nodes, {f"{name}d": weight(4, 1, 3, 3, seed=1), f"{name}p": weight(4, 4, 1, 1, seed=2)}
    return [node(kind, reads, [name])], {}


@st.composite
def models(draw: st.DrawFn, most: int = 9, kinds: tuple[str, ...] = tuple(KINDS)) -> onnx.ModelProto:
    """A model of up to `most` layers; unread results are returned."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    known = ["x"]
    for index in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(kinds))
        reads = [draw(st.sampled_from(known)) for _ in range(KINDS[kind])]
        more, constants = _layer(kind, reads, f"n{index}")
        nodes += more
        weights |= constants
        known.append(f"n{index}")
    read = {name for item in nodes for name in item.input}
    return proto_of(nodes, {"x": SHAPE}, [name for name in known[1:] if name not in read], weights)
