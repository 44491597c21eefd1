"""Which rows of an image each core computes, where a run of operators is shared out between rows.

Every part of a tensor is some of its rows, with a tensor of its own. A window that reaches beyond the rows of its core
needs rows of its neighbours: either both compute these (a halo, as in stencil codes), or they are copied, which starts
the halo anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnx import NodeProto

from iosched.models.node_attributes import integer, integers, padding
from iosched.models.wiring import is_standard
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.rewrite.blocked import NCHWC
from iosched.runtime.cpu.rewrite.images import is_image
from iosched.runtime.cpu.slicing import even_ranges

Rows = tuple[int, int]
"""Rows from the first up to, and without, the second."""

_POINTWISE = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "QuickGelu", "Add", "Mul"}
)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


@dataclass(frozen=True)
class Window:
    """Which rows of its operand a row of a result is computed from.

    Attributes:
        extent: how many.
        stride: rows of the operand from one row of the result to the next.
        above: rows of zeros above the operand.
    """

    extent: int = 1
    stride: int = 1
    above: int = 0

    def rows(self, result: Rows) -> Rows:
        """The rows of the operand that these rows of the result need, those of the padding included."""
        first, stop = result
        return first * self.stride - self.above, (stop - 1) * self.stride - self.above + self.extent


@dataclass(frozen=True)
class RowPlan:
    """The rows of all tensors of a run of nodes.

    Attributes:
        nodes: indices of the nodes of the run, in order.
        made: for each tensor that is computed, the rows that each part computes.
        needed: for each (node, operand), the rows that each part reads.
    """

    nodes: tuple[int, ...]
    made: Mapping[str, tuple[Rows, ...]]
    needed: Mapping[tuple[int, str], tuple[Rows, ...]]


def row_axis(kernels: KernelGraph, name: str) -> int:
    """The axis of the rows: of an image with channels last, which the first Transpose reads, it is another."""
    is_last = name in kernels.inputs and any(node.op_type == "Transpose" for node in kernels.graph.consumers(name))
    return 1 if is_last else 2


def height(kernels: KernelGraph, name: str) -> int:
    """How many rows a tensor has."""
    return kernels.graph.shape(name)[row_axis(kernels, name)]


def windows(kernels: KernelGraph, index: int) -> dict[str, Window] | None:
    """For each computed operand of node `index` its window; None where its rows cannot be computed apart."""
    node = kernels.nodes[index]
    if len(node.output) != 1 or not all(_is_image(kernels, name) for name in (*kernels.reads[index], node.output[0])):
        return None
    if node.domain == NCHWC and node.op_type in ("Conv", "MaxPool", "AveragePool"):
        return _window_of_kernel(kernels, node)
    if is_standard(node, "Transpose"):
        is_first = node.input[0] in kernels.inputs and len(kernels.readers[node.input[0]]) == 1
        return {node.input[0]: Window()} if is_first and integers(node, "perm") == _TO_CHANNELS_FIRST else None
    return _pointwise(kernels, node)


def _is_image(kernels: KernelGraph, name: str) -> bool:
    return is_image(kernels.graph, name) and kernels.graph.shape(name)[0] == 1


def _window_of_kernel(kernels: KernelGraph, node: NodeProto) -> dict[str, Window] | None:
    extents = _kernel_shape(kernels, node)
    if integer(node, "ceil_mode") or any(name in kernels.tensors for name in node.input[1:3]) or len(extents) != 2:
        return None
    pads = kernel_pads(kernels, node)
    if min(pads) < 0:
        return None
    extent = (extents[0] - 1) * integers(node, "dilations", (1, 1))[0] + 1
    found = {node.input[0]: Window(extent, integers(node, "strides", (1, 1))[0], pads[0])}
    summed = [name for name in node.input[3:4] if name]
    return None if node.input[0] in summed else {**found, **dict.fromkeys(summed, Window())}


def kernel_pads(kernels: KernelGraph, node: NodeProto) -> tuple[int, ...]:
    """How a convolution or a pool pads its image: above, before, below and behind."""
    return padding(node, kernels.graph.shape(node.input[0])[2:], _kernel_shape(kernels, node))


def _kernel_shape(kernels: KernelGraph, node: NodeProto) -> tuple[int, ...]:
    weight = kernels.weights.get(node.input[1]) if node.op_type == "Conv" else None
    return integers(node, "kernel_shape") or (() if weight is None else weight.shape[2:])


def _pointwise(kernels: KernelGraph, node: NodeProto) -> dict[str, Window] | None:
    computed = [name for name in node.input if name in kernels.tensors]
    constants = [kernels.weights[name] for name in node.input if name in kernels.weights]
    are_alike = len({kernels.graph.shape(name) for name in (*computed, node.output[0])}) == 1
    if node.op_type not in _POINTWISE or not are_alike or any(array.size > 1 for array in constants):
        return None
    return dict.fromkeys(computed, Window())


def plan_rows(
    kernels: KernelGraph, nodes: Sequence[int], parts: int, copies: Callable[[int, int], bool]
) -> RowPlan | None:
    """Shares the rows of the last node's result out evenly, and finds from it the rows of all before.

    Args:
        nodes: a run of nodes of which all have `windows`, in order; only the last one's result is read by others.
        copies: whether, of the result of that node, rows of other cores are copied and so many rows not computed
            twice. Rows of a tensor of which two nodes need different ones always are.

    Returns:
        None where some part would have no rows.

    Complexity: O(nodes times parts).
    """
    end = kernels.result(nodes[-1])
    made: dict[str, tuple[Rows, ...]] = {end: tuple(even_ranges(height(kernels, end), parts))}
    needed: dict[tuple[int, str], tuple[Rows, ...]] = {}
    if len(made[end]) < parts:
        return None
    for index in reversed(nodes):
        result = kernels.result(index)
        if result not in made:
            wanted = [needed[reader, result] for reader in kernels.readers[result]]
            rows = height(kernels, result)
            again = sum(b - a for a, b in wanted[0]) - rows
            is_alike = len(set(wanted)) == 1 and not (again > 0 and copies(index, again))
            made[result] = wanted[0] if is_alike else _apart(wanted, rows)
        for name, window in (windows(kernels, index) or {}).items():
            read = [window.rows(own) for own in made[result]]
            needed[index, name] = tuple((max(0, a), min(height(kernels, name), b)) for a, b in read)
    everything = (*made.values(), *needed.values())
    return RowPlan(tuple(nodes), made, needed) if all(a < b for own in everything for a, b in own) else None


def _apart(wanted: Sequence[tuple[Rows, ...]], rows: int) -> tuple[Rows, ...]:
    """Rows that do not overlap, cut in the middle of where those overlap least that somebody needs."""
    least = min(wanted, key=lambda own: sum(b - a for a, b in own))
    cuts = [0, *((before[1] + after[0]) // 2 for before, after in pairwise(least)), rows]
    return tuple(pairwise(cuts))
