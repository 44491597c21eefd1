"""Convolutions with few results, divided by their input channels: every core sums over some of them.

MLAS computes up to four blocks of results for each pixel that it loads. With one block for each core it reaches
about two thirds of its speed, and one block cannot be divided. For sums over many channels and pixels it is cheaper
to add partial sums.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph
from iosched.models.node_attributes import integer, text, with_attributes
from iosched.runtime.cpu.kernel_graph import SummedParts
from iosched.runtime.cpu.rewrite.blocked import NCHWC
from iosched.runtime.cpu.rewrite.images import is_image

_BLOCKS_AT_ONCE = 2
"""Blocks of results for each core at which MLAS nearly reaches full speed."""
_LEAST_TERMS = 256
"""Minimum terms of a core's sum for each result: below, adding the partial sums costs as much."""
_LEAST_FLOPS = 10_000_000
"""Minimum work: below, the additional wait between cores costs as much."""


def partial_sums(graph: EditableGraph, block: int, lanes: int) -> dict[str, SummedParts]:
    """Parts for `lanes` cores, by result, of every convolution that is faster in parts; O(nodes + their weights).

    Their tensors, and copies of their weights, are added to the graph.
    """
    worth = [node for node in graph.nodes if lanes > 1 and _is_worth_it(graph, node, block, lanes)]
    return {node.output[0]: _parts(graph, node, block, lanes) for node in worth}


def _is_worth_it(graph: EditableGraph, node: NodeProto, block: int, lanes: int) -> bool:
    if (node.domain, node.op_type) != (NCHWC, "Conv") or integer(node, "group", 1) != 1:
        return False
    weight, source = graph.weights.get(node.input[1]), node.input[0]
    if weight is None or source in node.input[3:] or text(node, "activation") not in ("", "Relu"):
        return False
    results, taken, *kernel = weight.shape
    is_alone = is_image(graph, source) and graph.shape(source)[:2] == (1, taken)
    if not is_alone or taken % block or taken // block < lanes:
        return False
    terms = taken * prod(kernel)
    flops = 2 * terms * prod(graph.shape(node.output[0]))
    is_narrow = results // block < _BLOCKS_AT_ONCE * lanes
    return bool(is_narrow and terms >= _LEAST_TERMS * lanes and flops >= _LEAST_FLOPS)


def _parts(graph: EditableGraph, node: NodeProto, block: int, lanes: int) -> SummedParts:
    result, weight = node.output[0], graph.weights[node.input[1]]
    blocks = weight.shape[1] // block
    edges = [blocks * lane // lanes for lane in range(lanes + 1)]
    nodes = []
    for begin, end in pairwise(edges):
        filters = graph.add_fresh_weight(f"{node.input[1]}/part", _filters(weight, block, begin, end))
        made = with_attributes(node, activation=None, activation_params=None)
        made.input[:] = [node.input[0], filters, *(node.input[2:] if begin == 0 else ())]
        made.output[0] = made.name = graph.add_tensor(f"{result}/part", result)
        nodes.append(made)
    is_activated = text(node, "activation") == "Relu"
    total = graph.add_tensor(f"{result}/part", result) if is_activated else result
    then = [make_node("Sum", [made.name for made in nodes], [total])]
    if is_activated:
        then.append(make_node("Relu", [total], [result]))
    return SummedParts(tuple(nodes), tuple(edge * block for edge in edges), tuple(then))


def _filters(weight: np.ndarray, block: int, begin: int, end: int) -> np.ndarray:
    """The filters for some blocks of input channels, in MLAS's layout OIHWBiBo."""
    results, taken, *kernel = weight.shape
    blocked = weight.reshape(results // block, taken // block, *kernel, block, block)
    return np.ascontiguousarray(blocked[:, begin:end]).reshape(results, (end - begin) * block, *kernel)
