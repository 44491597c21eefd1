"""Convolutions with few results, shared out by the channels that they read: every core sums over some of them.

MLAS computes up to four blocks of results for each pixel that it loads; with a single block for each core it runs at
about two thirds of its speed, and one block cannot be cut at all. Where each result is a sum over many channels and
pixels, to let each core sum over its channels, and to add up what they found, is cheaper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import assign, integer, text
from iosched.runtime.cpu.kernel_graph import KernelGraph, SummedParts
from iosched.runtime.cpu.layout_draft import NCHWC
from iosched.runtime.cpu.working import fresh_name

_BLOCKS_AT_ONCE = 2  # results for each core, from which MLAS comes near its full speed
_LEAST_TERMS = 256  # of the sum that a core computes for each result: below it, to add the sums up costs as much
_LEAST_FLOPS = 10_000_000  # below it, another wait between the cores does


def with_partial_sums(kernels: KernelGraph, lanes: int) -> KernelGraph:
    """The graph, with parts for `lanes` cores noted for every convolution that is better summed in parts.

    Complexity: O(nodes + weights of those convolutions), which are stored a second time.
    """
    if lanes < 2:
        return kernels
    found: dict[str, SummedParts] = {}
    tensors, weights = dict(kernels.tensors), dict(kernels.weights)
    for node in kernels.nodes:
        if _is_worth_it(kernels, node, lanes):
            found[node.output[0]] = _parts(kernels, node, lanes, tensors, weights)
    return replace(kernels, tensors=tensors, weights=weights, parts=found) if found else kernels


def _is_worth_it(kernels: KernelGraph, node: onnx.NodeProto, lanes: int) -> bool:
    if (node.domain, node.op_type) != (NCHWC, "Conv") or integer(node, "group", 1) != 1:
        return False
    weight, source = kernels.weights.get(node.input[1]), kernels.tensors.get(node.input[0])
    if (
        weight is None
        or source is None
        or node.input[0] in node.input[3:]
        or text(node, "activation") not in ("", "Relu")
    ):
        return False
    results, taken, *kernel = weight.shape
    block, shape = kernels.channel_block, source.shape or ()
    if len(shape) != 4 or shape[:2] != (1, taken) or taken % block or taken // block < lanes:
        return False
    terms = taken * prod(kernel)
    flops = 2 * terms * prod(kernels.tensors[node.output[0]].shape or ())
    is_narrow = results // block < _BLOCKS_AT_ONCE * lanes
    return bool(is_narrow and terms >= _LEAST_TERMS * lanes and flops >= _LEAST_FLOPS)


def _parts(
    kernels: KernelGraph,
    node: onnx.NodeProto,
    lanes: int,
    tensors: dict[str, TensorSpec],
    weights: dict[str, np.ndarray],
) -> SummedParts:
    result, weight, block = node.output[0], kernels.weights[node.input[1]], kernels.channel_block
    blocks = weight.shape[1] // block
    edges = [blocks * lane // lanes for lane in range(lanes + 1)]
    names, nodes = [], []
    for begin, end in pairwise(edges):
        weights[filters := fresh_name(f"{node.input[1]}/part", weights, tensors)] = _filters(weight, block, begin, end)
        names.append(_like(tensors, result, weights))
        made = onnx.NodeProto()
        made.CopyFrom(node)
        first = begin == 0
        made.input[:] = [node.input[0], filters, *(node.input[2:] if first else ())]
        made.output[0] = made.name = names[-1]
        assign(made, activation=None, activation_params=None)
        nodes.append(made)
    is_activated = text(node, "activation") == "Relu"
    total = _like(tensors, result, weights) if is_activated else result
    then = [make_node("Sum", names, [total])]
    if is_activated:
        then.append(make_node("Relu", [total], [result]))
    return SummedParts(tuple(nodes), tuple(edge * block for edge in edges), tuple(then))


def _like(tensors: dict[str, TensorSpec], result: str, weights: Mapping[str, np.ndarray]) -> str:
    """The name of a new tensor of the shape of `result`."""
    name = fresh_name(f"{result}/part", tensors, weights)
    tensors[name] = replace(tensors[result], name=name)
    return name


def _filters(weight: np.ndarray, block: int, begin: int, end: int) -> np.ndarray:
    """The filters for some of the blocks of channels that a convolution reads, in MLAS's layout OIHWBiBo."""
    results, taken, *kernel = weight.shape
    blocked = weight.reshape(results // block, taken // block, *kernel, block, block)
    return np.ascontiguousarray(blocked[:, begin:end]).reshape(results, (end - begin) * block, *kernel)
