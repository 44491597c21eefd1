"""Local response normalization as a convolution of squares and two square roots.

onnxruntime raises each element to a power, sequentially and in the plain layout, in some 30 ns: more than the
surrounding convolutions take. The sum over a window of channels is a 1x1 convolution with a banded matrix, and the
usual power of 3/4 is a root times the root of the root; all of it stays in the blocked layout.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph
from iosched.models.node_attributes import integer, number
from iosched.models.wiring import is_standard
from iosched.runtime.cpu.rewrite.images import is_image

_MAX_CHANNELS = 512  # the convolution reads all channels for each result
_POWERS = (0.5, 0.75, 1.0)


def decompose_response_norms(graph: EditableGraph) -> None:
    """Replace such normalizations; O(nodes + channels² of each). Results differ by a few ulps."""
    for node in graph.nodes:
        if is_standard(node, "LRN") and _is_known(graph, node):
            _spell_out(graph, node)


def _is_known(graph: EditableGraph, node: NodeProto) -> bool:
    if not is_image(graph, node.input[0]) or graph.shape(node.input[0])[1] > _MAX_CHANNELS:
        return False
    is_odd = integer(node, "size", 1) % 2 == 1  # onnxruntime runs no others
    return is_odd and number(node, "beta", 0.75) in _POWERS


def _spell_out(graph: EditableGraph, node: NodeProto) -> None:
    source, result, power = node.input[0], node.output[0], number(node, "beta", 0.75)

    def add(kind: str, *inputs: str) -> str:
        name = graph.add_tensor(f"{result}/inner", result)
        graph.insert_before(result, make_node(kind, inputs, [name], name=name))
        return name

    channels = graph.shape(source)[1]
    bias = np.full(channels, number(node, "bias", 1.0), np.float32)
    parameters = {"window": _window(node, channels), "bias": bias}
    names = [graph.add_fresh_weight(f"{result}/{key}", value) for key, value in parameters.items()]
    divisor = _raised(add("Conv", add("Mul", source, source), *names), power, add)
    graph.replace(result, make_node("Div", [source, divisor], [result], name=result))


def _raised(base: str, power: float, add: Callable[..., str]) -> str:
    if power == 1.0:
        return base
    root = add("Sqrt", base)
    return root if power == 0.5 else add("Mul", root, add("Sqrt", root))


def _window(node: NodeProto, channels: int) -> np.ndarray:
    """Filters `(channels, channels, 1, 1)` that sum the channels around each one, by the operator's definition."""
    size = integer(node, "size", 1)
    distance = np.arange(channels) - np.arange(channels)[:, None]
    is_near = np.abs(distance) <= size // 2
    weight = np.float32(number(node, "alpha", 1e-4) / size)
    return np.where(is_near, weight, np.float32(0)).reshape(channels, channels, 1, 1)
