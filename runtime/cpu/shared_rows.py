"""Divides the first operators of a network by rows of the image, where that is faster than by channels.

Near the image, tensors are large and have few channels: one or two blocks for each core, or blocks that do not divide
evenly, while MLAS computes up to four blocks for each pixel that it loads. Rows are not contiguous in the blocked
layout, so each core keeps its rows in separate tensors, which are joined only where another operator reads the whole
image.

A window that reaches beyond a core's rows needs rows of its neighbours: both compute them (a halo, as in stencil
codes), or they are copied, which restarts the halo. Only operators in sequence are divided, so there is nothing to
schedule concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.node_attributes import assign, integer, integers, names, padding, text, with_attributes
from iosched.models.wiring import is_standard
from iosched.runtime.cpu.kernel_graph import BYTES_PER_US, KernelGraph, SharedRows, node_work_us
from iosched.runtime.cpu.rewrite.blocked import NCHWC
from iosched.runtime.cpu.rewrite.images import is_image
from iosched.runtime.cpu.slicing import Rows, RowWindow, even_ranges

_SET_COST = (0.0, 1.8, 2.3, 3.1, 4.0)
"""Cost of computing 0 to 4 blocks of results together in MLAS, relative to one block of a full set."""
_HANDOVER_US = 5.0
_LEAST_GAIN_US = 50.0
_SLICE_BY_OPERANDS = 10
"""Operator set in which the parameters of Slice became operands."""


def share_rows(kernels: KernelGraph, lanes: int) -> KernelGraph:
    """The graph with the best run of nodes after its input divided by rows among `lanes` cores.

    The graph inside `kernels` is edited. O(n^2) in the nodes of the longest such run.
    """
    if lanes < 2 or kernels.graph.opset < _SLICE_BY_OPERANDS:
        return kernels
    plans = [plan for run in _runs(kernels) if (plan := _planned(kernels, run, lanes)) is not None]
    best = max(plans, key=lambda plan: _gain_us(kernels, plan, lanes), default=None)
    if best is None or _gain_us(kernels, best, lanes) < _LEAST_GAIN_US:
        return kernels
    return _DividedNodes(kernels, kernels.graph, best).finished()


def _runs(kernels: KernelGraph) -> Iterator[tuple[int, ...]]:
    """Runs of nodes from a graph input to one tensor, the only one that other nodes read."""
    for source in kernels.inputs:
        nodes: list[int] = []
        inside = {source}
        # A residual may be pending.
        while len(alive := _alive(kernels, nodes, inside)) <= 2:
            if nodes and alive == [kernels.result(nodes[-1])]:
                yield tuple(nodes)
            readers = [reader for name in alive for reader in kernels.readers[name] if reader not in nodes]
            if not readers or not _may_follow(kernels, min(readers), inside):
                break
            nodes.append(min(readers))
            inside.add(kernels.result(nodes[-1]))


def _alive(kernels: KernelGraph, nodes: Sequence[int], inside: set[str]) -> list[str]:
    return [name for name in inside if not set(nodes).issuperset(kernels.readers[name])]


def _may_follow(kernels: KernelGraph, index: int, inside: set[str]) -> bool:
    """Whether a node may continue a run: no other node could run at the same time."""
    if not inside.issuperset(kernels.reads[index]) or not inside.isdisjoint(kernels.outputs):
        return False
    image, result = kernels.reads[index][0], kernels.result(index)
    readers = [reader for reader in kernels.readers[image] if kernels.nodes[reader].input[0] == image]
    return len(readers) == 1 and result not in kernels.outputs and windows(kernels, index) is not None


# --- expected gain -------------------------------------------------------------------------------------------------


def _planned(kernels: KernelGraph, run: Sequence[int], lanes: int) -> RowPlan | None:
    before_us = dict(zip(run, accumulate(node_work_us(kernels, index) for index in run), strict=True))

    def copies(index: int, again: int) -> bool:
        name = kernels.result(index)
        return before_us[index] * again / height(kernels, name) / lanes > _copy_us(kernels, name, lanes)

    return plan_rows(kernels, run, lanes, copies)


def _copy_us(kernels: KernelGraph, name: str, lanes: int) -> float:
    return _HANDOVER_US + 2 * kernels.tensors[name].nbytes / lanes / BYTES_PER_US


def _gain_us(kernels: KernelGraph, plan: RowPlan, lanes: int) -> float:
    *before, last = (kernels.result(index) for index in plan.nodes)
    copied = [name for name in before if any(plan.needed[r, name] != plan.made[name] for r in kernels.readers[name])]
    gained = sum(_saved_us(kernels, plan, index, lanes) for index in plan.nodes)
    return gained - sum(_copy_us(kernels, name, lanes) for name in (*copied, last))


def _saved_us(kernels: KernelGraph, plan: RowPlan, index: int, lanes: int) -> float:
    result = kernels.result(index)
    of_rows = max(stop - first for first, stop in plan.made[result]) / height(kernels, result)
    read_again = sum(kernels.weights[name].nbytes for name in kernels.constants[index]) * (1 - 1 / lanes)
    own_us = node_work_us(kernels, index)
    return own_us * (_of_channels(kernels, index, lanes) - of_rows) - read_again / BYTES_PER_US


def _of_channels(kernels: KernelGraph, index: int, lanes: int) -> float:
    """The slowest core's share of a node's time if it is divided by blocks of channels."""
    node = kernels.nodes[index]
    if node.op_type == "Transpose":
        return 1.0
    if node.output[0] in kernels.parts:
        return 1 / lanes
    channels = kernels.graph.shape(node.output[0])[1]
    sizes = [-(-(b - a) // kernels.channel_block) for a, b in even_ranges(channels, lanes, kernels.channel_block)]
    if node.op_type != "Conv" or integer(node, "group", 1) > 1:
        return max(sizes) / sum(sizes)
    return _blocks_cost(max(sizes)) / _blocks_cost(sum(sizes))


def _blocks_cost(blocks: int) -> float:
    return blocks // 4 * _SET_COST[4] + _SET_COST[blocks % 4]


# --- the nodes for rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _DividedNodes:
    """The nodes that replace those of a plan, one for each part.

    In the blocked layout, the rows of each block of channels are separate, so they are cut and joined on another
    view of the same bytes, their lines: (blocks, rows, rest).

    Attributes:
        graph: the graph of `kernels`, which is edited.
        parts: for each divided tensor, its parts.
        in_blocks: tensors in the blocked layout.
        lane_of: core of each tensor that a single core computes.
        made: all new nodes.
    """

    kernels: KernelGraph
    graph: EditableGraph
    plan: RowPlan
    parts: dict[str, list[str]] = field(default_factory=dict)
    in_blocks: set[str] = field(default_factory=set)
    lane_of: dict[str, int] = field(default_factory=dict)
    made: list[NodeProto] = field(default_factory=list)

    def finished(self) -> KernelGraph:
        for index in self.plan.nodes:
            self._compute(index)
        whole = tuple(self.kernels.nodes[index] for index in self.plan.nodes)
        result = whole[-1].output[0]
        joined = self._joined([self._lines(part, result) for part in self.parts[result]], result, None)
        shape = self._constant(result, self.graph.shape(result))
        self.made.append(make_node("Reshape", [joined, shape], [result], name=self._label(result)))
        self.graph.replace([node_name(node) for node in whole], *self.made)
        shared = SharedRows(self.lane_of, whole, frozenset(node.output[0] for node in self.made))
        return replace(self.kernels, nodes=self.graph.nodes, rows=shared)

    def _compute(self, index: int) -> None:
        node, sources = self.kernels.nodes[index], windows(self.kernels, index) or {}
        result = node.output[0]
        if node.domain == NCHWC or not self.in_blocks.isdisjoint(sources):
            self.in_blocks.add(result)
        for lane, rows in enumerate(self.plan.made[result]):
            operands = {name: self._operand(index, name, lane) for name in sources}
            part = with_attributes(node)
            part.input[:] = [operands.get(name, name) for name in node.input]
            part.output[0] = self._tensor(result, result, self._shape(result, 2, rows))
            part.name = f"{self._label(result)}/rows{lane}"
            if "pads" in names(node) or text(node, "auto_pad"):
                source = node.input[0]
                (first, stop), (low, high) = sources[source].rows(rows), self.plan.needed[index, source][lane]
                _, left, _, right = kernel_pads(self.kernels, node)
                assign(part, pads=(low - first, left, stop - high, right), auto_pad="NOTSET")
            self.parts.setdefault(result, []).append(part.output[0])
            self._add(part, lane)

    def _operand(self, index: int, name: str, lane: int) -> str:
        rows = self.plan.needed[index, name][lane]
        if name not in self.plan.made:
            return self._cut(name, row_axis(self.kernels, name), rows, self.kernels.result(index), lane)
        made = self.plan.made[name]
        if made[lane] == rows:
            return self.parts[name][lane]
        pieces = []
        for part, (begin, end) in zip(self.parts[name], made, strict=True):
            low, high = max(rows[0], begin), min(rows[1], end)
            if low < high:
                pieces.append(self._cut(self._lines(part, name), 1, (low - begin, high - begin), name, lane))
        lines = self._joined(pieces, name, lane)
        shape = self._shape(name, 2, rows)
        return self._put("Reshape", [lines, shape], shape, name)

    def _lines(self, part: str, name: str) -> str:
        """Rows of `name` as a tensor (blocks of channels, rows, rest) of the same bytes."""
        _, channels, rows, columns = self.graph.shape(part)
        block = self.kernels.channel_block if name in self.in_blocks else 1
        shape = channels // block, rows, columns * block
        return self._put("Reshape", [part, shape], shape, name)

    def _cut(self, source: str, axis: int, rows: Rows, of: str, lane: int) -> str:
        if rows == (0, self.graph.shape(source)[axis]):
            return source
        first, stop = rows
        return self._put("Slice", [source, [first], [stop], [axis]], self._shape(source, axis, rows), of, lane)

    def _joined(self, pieces: Sequence[str], of: str, lane: int | None) -> str:
        if len(pieces) == 1:
            return pieces[0]
        total = sum(self.graph.shape(name)[1] for name in pieces)
        shape = self._shape(pieces[0], 1, (0, total))
        return self._put("Concat", pieces, shape, of, lane)

    def _shape(self, name: str, axis: int, rows: Rows) -> tuple[int, ...]:
        shape = self.graph.shape(name)
        return (*shape[:axis], rows[1] - rows[0], *shape[axis + 1 :])

    def _put(
        self, kind: str, operands: Sequence[str | Sequence[int]], shape: Sequence[int], of: str, lane: int | None = None
    ) -> str:
        result = self._tensor(self._label(of), of, shape)
        inputs = [each if isinstance(each, str) else self._constant(of, each) for each in operands]
        axis = 1 if kind == "Concat" else None
        self._add(make_node(kind, inputs, [result], name=result, axis=axis), lane)
        return result

    def _add(self, node: NodeProto, lane: int | None) -> None:
        self.made.append(node)
        if lane is not None:
            self.lane_of[node.output[0]] = lane

    def _label(self, tensor: str) -> str:
        """Prefix of new names: the name of the node that computes a tensor, or of the tensor."""
        return self.kernels.nodes[self.kernels.producer[tensor]].name or tensor

    def _tensor(self, name: str, like: str, shape: Sequence[int]) -> str:
        return self.graph.add_tensor(f"{name}/rows{len(self.graph.tensors)}", like, shape)

    def _constant(self, of: str, numbers: Sequence[int]) -> str:
        name = f"{self._label(of)}/rows{len(self.graph.weights)}"
        return self.graph.add_integers(name, numbers)


_POINTWISE = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "QuickGelu", "Add", "Mul"}
)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


@dataclass(frozen=True)
class RowPlan:
    """The rows of all tensors of a run of nodes.

    Attributes:
        nodes: indices of the nodes, in order.
        made: for each computed tensor, the rows of each part.
        needed: for each (node, operand), the rows that each part reads.
    """

    nodes: tuple[int, ...]
    made: Mapping[str, tuple[Rows, ...]]
    needed: Mapping[tuple[int, str], tuple[Rows, ...]]


def row_axis(kernels: KernelGraph, name: str) -> int:
    """The axis of the rows: another one for a channels-last image that the first Transpose reads."""
    is_last = name in kernels.inputs and any(node.op_type == "Transpose" for node in kernels.graph.consumers(name))
    return 1 if is_last else 2


def height(kernels: KernelGraph, name: str) -> int:
    """Number of rows of a tensor."""
    return kernels.graph.shape(name)[row_axis(kernels, name)]


def windows(kernels: KernelGraph, index: int) -> dict[str, RowWindow] | None:
    """The `RowWindow` of each computed operand of node `index`; None if its rows cannot be computed separately."""
    node = kernels.nodes[index]
    if len(node.output) != 1 or not all(_is_image(kernels, name) for name in (*kernels.reads[index], node.output[0])):
        return None
    if node.domain == NCHWC and node.op_type in ("Conv", "MaxPool", "AveragePool"):
        return _window_of_kernel(kernels, node)
    if is_standard(node, "Transpose"):
        is_first = node.input[0] in kernels.inputs and len(kernels.readers[node.input[0]]) == 1
        return {node.input[0]: RowWindow()} if is_first and integers(node, "perm") == _TO_CHANNELS_FIRST else None
    return _pointwise(kernels, node)


def _is_image(kernels: KernelGraph, name: str) -> bool:
    return is_image(kernels.graph, name) and kernels.graph.shape(name)[0] == 1


def _window_of_kernel(kernels: KernelGraph, node: NodeProto) -> dict[str, RowWindow] | None:
    extents = _kernel_shape(kernels, node)
    if integer(node, "ceil_mode") or any(name in kernels.tensors for name in node.input[1:3]) or len(extents) != 2:
        return None
    pads = kernel_pads(kernels, node)
    if min(pads) < 0:
        return None
    extent = (extents[0] - 1) * integers(node, "dilations", (1, 1))[0] + 1
    found = {node.input[0]: RowWindow(extent, integers(node, "strides", (1, 1))[0], pads[0])}
    summed = [name for name in node.input[3:4] if name]
    return None if node.input[0] in summed else {**found, **dict.fromkeys(summed, RowWindow())}


def kernel_pads(kernels: KernelGraph, node: NodeProto) -> tuple[int, ...]:
    """Padding of a convolution or pool: top, left, bottom, right."""
    return padding(node, kernels.graph.shape(node.input[0])[2:], _kernel_shape(kernels, node))


def _kernel_shape(kernels: KernelGraph, node: NodeProto) -> tuple[int, ...]:
    weight = kernels.weights.get(node.input[1]) if node.op_type == "Conv" else None
    return integers(node, "kernel_shape") or (() if weight is None else weight.shape[2:])


def _pointwise(kernels: KernelGraph, node: NodeProto) -> dict[str, RowWindow] | None:
    computed = [name for name in node.input if name in kernels.tensors]
    constants = [kernels.weights[name] for name in node.input if name in kernels.weights]
    are_alike = len({kernels.graph.shape(name) for name in (*computed, node.output[0])}) == 1
    if node.op_type not in _POINTWISE or not are_alike or any(array.size > 1 for array in constants):
        return None
    return dict.fromkeys(computed, RowWindow())


def plan_rows(
    kernels: KernelGraph, nodes: Sequence[int], parts: int, copies: Callable[[int, int], bool]
) -> RowPlan | None:
    """Divide the last node's result evenly by rows, and derive the rows of all earlier nodes; O(nodes * parts).

    None if a part would have no rows.

    Args:
        nodes: a run of nodes that all have `windows`, in order; others read only the last one's result.
        copies: whether a node's result is copied between cores instead of computing that many rows twice. A result of
            which two nodes need different rows is always copied.
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
            made[result] = wanted[0] if is_alike else _disjoint(wanted, rows)
        for name, window in (windows(kernels, index) or {}).items():
            read = [window.rows(own) for own in made[result]]
            needed[index, name] = tuple((max(0, a), min(height(kernels, name), b)) for a, b in read)
    everything = (*made.values(), *needed.values())
    return RowPlan(tuple(nodes), made, needed) if all(a < b for own in everything for a, b in own) else None


def _disjoint(wanted: Sequence[tuple[Rows, ...]], rows: int) -> tuple[Rows, ...]:
    """Disjoint rows, cut in the middle of the smallest overlap that a reader needs."""
    least = min(wanted, key=lambda own: sum(b - a for a, b in own))
    cuts = [0, *((before[1] + after[0]) // 2 for before, after in pairwise(least)), rows]
    return tuple(pairwise(cuts))
