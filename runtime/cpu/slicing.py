"""Slices of tensors, windows, and shares of nodes: common parts of the rules that divide nodes among cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import numpy as np
import onnx

from iosched.runtime.cpu.kernel_graph import KernelGraph


@dataclass(frozen=True)
class TensorSlice:
    """A contiguous part of a tensor: `start` counts elements, `shape` is that of the part."""

    start: int
    shape: tuple[int, ...]


Rows = tuple[int, int]
"""Half-open range of rows."""


@dataclass(frozen=True)
class RowWindow:
    """The rows of the operand that a row of the result is computed from.

    Attributes:
        extent: number of rows.
        stride: rows of the operand between rows of the result.
        above: rows of zeros above the operand.
    """

    extent: int = 1
    stride: int = 1
    above: int = 0

    def rows(self, result: Rows) -> Rows:
        """Rows of the operand, padding included, that these rows of the result need."""
        first, stop = result
        return first * self.stride - self.above, (stop - 1) * self.stride - self.above + self.extent


@dataclass(frozen=True, eq=False)
class Share:
    """One core's share of a node.

    Attributes:
        node: the node to run, with attributes adjusted to the slices.
        slices: the slice of each computed tensor that is not used completely.
        weights: the slice of each constant that is not used completely.
    """

    node: onnx.NodeProto
    slices: Mapping[str, TensorSlice]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)


def shape_of(kernels: KernelGraph, name: str) -> tuple[int, ...]:
    """Shape of a constant, or of a computed tensor of known size."""
    constant = kernels.weights.get(name)
    return (kernels.tensors[name].shape or ()) if constant is None else constant.shape


def even_ranges(total: int, shares: int, step: int = 1) -> list[tuple[int, int]]:
    """`shares` nearly equal ranges over `total` at multiples of `step`; fewer if there are too few steps."""
    steps = -(-total // step)
    shares = min(shares, steps)
    edges = [min(total, (steps * i // shares) * step) for i in range(shares + 1)]
    return list(pairwise(edges))


def along(shape: tuple[int, ...], axis: int, begin: int, end: int) -> TensorSlice:
    """The slice [begin, end) on `axis`; contiguous because all earlier axes have size 1."""
    return TensorSlice(begin * prod(shape[axis + 1 :]), (*shape[:axis], end - begin, *shape[axis + 1 :]))


def share_of(kernels: KernelGraph, node: onnx.NodeProto, places: Mapping[str, tuple[int, int, int]]) -> Share:
    """The share that uses [begin, end) on an axis of these tensors and constants, and other operands completely.

    Args:
        places: (axis, begin, end) by name; in computed tensors, all earlier axes have size 1.
    """
    slices = {name: along(shape_of(kernels, name), *at) for name, at in places.items() if name not in kernels.weights}
    weights = {
        name: kernels.weights[name][(slice(None),) * axis + (slice(begin, end),)]
        for name, (axis, begin, end) in places.items() if name in kernels.weights
    }  # fmt: skip
    return Share(node, slices, weights)


def broadcast_share(
    kernels: KernelGraph, node: onnx.NodeProto, from_end: int, begin: int, end: int, *, whole: str = ""
) -> Share:
    """The share that uses [begin, end) of axis -`from_end`; `whole`, and operands broadcast along it, stay whole."""
    shapes = {name: shape_of(kernels, name) for name in (*node.input, node.output[0]) if name not in ("", whole)}
    cut = {name: len(shape) - from_end for name, shape in shapes.items() if len(shape) >= from_end}
    places = {name: (axis, begin, end) for name, axis in cut.items() if shapes[name][axis] != 1}
    return share_of(kernels, node, places)


def neighbours(kernels: KernelGraph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that compute the operands or read the results; empty for parts of a node."""
    indices = [kernels.producer[name] for name in node.input if name in kernels.producer]
    indices += [index for name in node.output if name for index in kernels.readers[name]]
    return [kernels.nodes[index] for index in indices]
