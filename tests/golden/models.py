"""The files that golden calls work on: made once, by the tree before, so that both trees read the same bytes."""

from __future__ import annotations

import sys
from math import prod, sqrt
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

try:
    from iosched.models.zoo import light
except ImportError:  # a tree before light.py moved
    from iosched.models import light

SHAPE = (1, 8, 14, 14)


def write_all(folder: Path, seeds: int) -> None:
    """Writes the light networks, small named models, damaged ones, inputs and `seeds` random networks."""
    for name in light.NAMES:
        onnx.save(light.light_model(name), folder / f"light_{name}.onnx")
    onnx.save(branches(0), folder / "model.onnx")
    onnx.save(branches(1), folder / "retrained.onnx")
    onnx.save(branches(0, size=10), folder / "small.onnx")
    onnx.save(branches(0, batch="n"), folder / "dynamic.onnx")
    for seed in range(seeds):
        onnx.save(random_network(seed), folder / f"seed{seed}.onnx")
    (folder / "broken.onnx").write_bytes(b"not a model")
    (folder / "empty.onnx").touch()
    cut = branches(0).SerializeToString()
    (folder / "cut.onnx").write_bytes(cut[: len(cut) // 2])
    np.save(folder / "x.npy", np.linspace(-1, 1, prod(SHAPE), dtype=np.float32).reshape(SHAPE))
    np.save(folder / "wrong.npy", np.zeros((1, 3), np.float32))


def branches(seed: int, batch: int | str = 1, size: int = 14) -> onnx.ModelProto:
    """Two branches of two convolutions each, and their Concat."""
    rng = np.random.default_rng(seed)
    weights = {f"w{name}": _normal(rng, (8, 8, 3, 3)) for name in "abcd"}
    reads = (("x", "a"), ("a", "b"), ("x", "c"), ("c", "d"))
    nodes = [helper.make_node("Conv", [read, f"w{name}"], [name], pads=[1] * 4) for read, name in reads]
    nodes.append(helper.make_node("Concat", ["b", "d"], ["y"], axis=1))
    return _model(nodes, weights, (batch, 8, size, size), {"y": (batch, 16, size, size)})


def random_network(seed: int) -> onnx.ModelProto:
    """Up to twelve layers of one shape, each of which reads any earlier one; a layer that none reads is an output."""
    random, rng = Random(seed), np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    known = ["x"]
    for number in range(random.randint(2, 12)):
        name, read, other = f"n{number}", random.choice(known), random.choice(known)
        kind = random.choice(("Relu", "Sigmoid", "MaxPool", "Conv1", "Conv3", "Depthwise", "Add", "Mul", "Join"))
        if kind == "Join":
            weights[f"{name}w"] = _normal(rng, (8, 16, 1, 1))
            nodes.append(helper.make_node("Concat", [read, other], [f"{name}j"], axis=1))
            nodes.append(helper.make_node("Conv", [f"{name}j", f"{name}w"], [name]))
        elif kind in ("Conv1", "Conv3", "Depthwise"):
            size, group = (1, 1) if kind == "Conv1" else (3, 8 if kind == "Depthwise" else 1)
            weights[f"{name}w"] = _normal(rng, (8, 8 // group, size, size))
            nodes.append(helper.make_node("Conv", [read, f"{name}w"], [name], pads=[size // 2] * 4, group=group))
        elif kind == "MaxPool":
            nodes.append(helper.make_node(kind, [read], [name], kernel_shape=[3, 3], pads=[1] * 4))
        else:
            nodes.append(helper.make_node(kind, [read, other] if kind in ("Add", "Mul") else [read], [name]))
        known.append(name)
    used = {name for node in nodes for name in node.input}
    return _model(nodes, weights, SHAPE, {name: SHAPE for name in known[1:] if name not in used})


def _model(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], x: tuple[int | str, ...], outputs: dict[str, tuple]
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "golden",
        [info("x", TensorProto.FLOAT, x)],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))).astype(np.float32)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), int(sys.argv[2]))
