"""The same network written differently: other names, nodes in another order, other weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

SMALL = 64
"""Floating constants of fewer elements are left as they are: a Clip's bounds, a Pad's value, a Resize's scales."""


def renamed(proto: onnx.ModelProto, prefix: str = "t") -> onnx.ModelProto:
    """Every tensor and node under another name, inputs and outputs included."""
    new = _copy(proto)
    graph, names = new.graph, {"": ""}

    def name_of(name: str) -> str:
        return names.setdefault(name, f"{prefix}{len(names)}")

    for item in (*graph.input, *graph.initializer, *graph.output, *graph.value_info):
        item.name = name_of(item.name)
    for index, node in enumerate(graph.node):
        node.name = f"{prefix}_node{index}"
        node.input[:] = [name_of(name) for name in node.input]
        node.output[:] = [name_of(name) for name in node.output]
    return new


def shuffled(proto: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The nodes in any order in which each comes after what it reads, the weights in any order."""
    rng, new = np.random.default_rng(seed), _copy(proto)
    waiting = [new.graph.node[index] for index in rng.permutation(len(new.graph.node))]
    computed = {name for node in waiting for name in node.output}
    nodes: list[onnx.NodeProto] = []
    while waiting:
        ready = next(node for node in waiting if computed.isdisjoint(node.input))
        waiting.remove(ready)
        computed.difference_update(ready.output)
        nodes.append(onnx.NodeProto.FromString(ready.SerializeToString()))
    weights = [onnx.TensorProto.FromString(item.SerializeToString()) for item in proto.graph.initializer]
    del new.graph.node[:], new.graph.initializer[:]
    new.graph.node.extend(nodes)
    new.graph.initializer.extend(weights[index] for index in rng.permutation(len(weights)))
    return new


def retrained(proto: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Other values in all floating weights but the small ones."""
    rng, new = np.random.default_rng(seed), _copy(proto)
    for tensor in new.graph.initializer:
        old = numpy_helper.to_array(tensor)
        if old.dtype.kind == "f" and old.size >= SMALL:
            values = np.roll(old, rng.integers(1, old.size)) * rng.uniform(1.2, 1.3)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(values, old.dtype), tensor.name))
    return new


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    new = onnx.ModelProto()
    new.CopyFrom(proto)
    return new
