"""The graph in which a run of nodes is replaced by nodes for some rows each; the rows are those of a `RowPlan`.

In the blocked layout rows lie apart, once for each block of channels, so they are cut and joined on another view of the
same bytes: blocks, rows, and the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import assign, integers, names, padding, text
from iosched.runtime.cpu.kernel_graph import KernelGraph, SharedRows
from iosched.runtime.cpu.rewrite.layouts import NCHWC
from iosched.runtime.cpu.row_ranges import RowPlan, Rows, height, row_axis, windows
from iosched.runtime.cpu.shares import shape_of


@dataclass(eq=False)
class RowsDraft:
    """The nodes for rows that stand for nodes of a graph.

    Attributes:
        kernels: the graph, to which tensors and weights are added.
        parts: for each tensor that is computed in parts, the parts.
        labels: for each of these tensors, the name of the node that computed it.
        in_blocks: those in the blocked layout.
        lane_of: for each tensor that one core computes, which of the cores.
        made: all nodes that are new.
    """

    kernels: KernelGraph
    plan: RowPlan
    parts: dict[str, list[str]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    in_blocks: set[str] = field(default_factory=set)
    lane_of: dict[str, int] = field(default_factory=dict)
    made: list[onnx.NodeProto] = field(default_factory=list)

    @property
    def graph(self) -> EditableGraph:
        """The graph that is edited."""
        return self.kernels.graph

    def finished(self) -> KernelGraph:
        """The graph with the nodes of the plan in parts, all of them before the others: they need nothing else."""
        whole = [self.kernels.nodes[index] for index in self.plan.nodes]
        for index in self.plan.nodes:
            self._compute(index)
        result = whole[-1].output[0]
        self._put_together(result)
        spec = self.graph.tensors[result]
        self.graph.remove(*map(node_name, whole))
        for node in reversed(self.made):
            self.graph.prepend(node)
        self.graph.tensors[result] = spec
        shared = SharedRows(self.lane_of, tuple(whole), frozenset(node.output[0] for node in self.made))
        return replace(self.kernels, nodes=self.graph.nodes, rows=shared)

    def _compute(self, index: int) -> None:
        """Adds the parts of a node."""
        node, sources = self.kernels.nodes[index], windows(self.kernels, index) or {}
        result = node.output[0]
        self.labels[result] = node.name or result
        if node.domain == NCHWC or not self.in_blocks.isdisjoint(sources):
            self.in_blocks.add(result)
        self.parts[result] = []
        for lane, rows in enumerate(self.plan.made[result]):
            operands = {name: self._rows(index, name, lane) for name in sources}
            part = onnx.NodeProto()
            part.CopyFrom(node)
            part.input[:] = [operands.get(name, name) for name in node.input]
            part.output[0] = self._tensor(result, result, rows)
            part.name = f"{self.labels[result]}/rows{lane}"
            if "pads" in names(node) or text(node, "auto_pad"):
                above, before, below, behind = self._pads(index, rows)
                assign(part, pads=(above, before, below, behind), auto_pad="NOTSET")
            self.parts[result].append(part.output[0])
            self._add(part, lane)

    def _pads(self, index: int, rows: Rows) -> tuple[int, int, int, int]:
        """What is left of a node's padding where it computes only these rows of its result."""
        node = self.kernels.nodes[index]
        source = node.input[0]
        window = (windows(self.kernels, index) or {})[source]
        first, stop = window.rows(rows)
        extents = integers(node, "kernel_shape") or self.kernels.weights[node.input[1]].shape[2:]
        _, before, _, behind = padding(node, shape_of(self.kernels, source)[2:], extents)
        return max(0, -first), before, max(0, stop - height(self.kernels, source)), behind

    def _rows(self, index: int, name: str, lane: int) -> str:
        """The rows of an operand that the part of a node for `lane` reads."""
        first, stop = self.plan.needed[index, name][lane]
        if name not in self.plan.made:
            return self._of_input(index, name, lane, (first, stop))
        made = self.plan.made[name]
        if made[lane] == (first, stop):
            return self.parts[name][lane]
        label, pieces = self.labels[name], []
        for part, (begin, end) in zip(self.parts[name], made, strict=True):
            taken = max(first, begin), min(stop, end)
            if taken[0] < taken[1]:
                view = self._lines(part, label)
                pieces.append(view if taken == (begin, end) else self._cut(view, 1, begin, taken, lane, label))
        return self._image(self._joined(pieces, label, lane), name, (first, stop), label)

    def _of_input(self, index: int, name: str, lane: int, rows: Rows) -> str:
        if rows == (0, height(self.kernels, name)):
            return name
        label = self.kernels.nodes[index].name or self.kernels.nodes[index].output[0]
        return self._cut(name, row_axis(self.kernels, name), 0, rows, lane, label)

    def _put_together(self, result: str) -> None:
        """Makes one tensor of the parts."""
        label = self.labels[result]
        whole = self._joined([self._lines(part, label) for part in self.parts[result]], label, None)
        shape = self._constant(f"{label}/rows", shape_of(self.kernels, result))
        self._add(make_node("Reshape", [whole, shape], [result], name=label), None)

    def _lines(self, image: str, label: str) -> str:
        """An image as a tensor (blocks of channels, rows, the rest), of the same bytes."""
        _, channels, rows, columns = self.graph.shape(image)
        block = self.kernels.channel_block if self._is_blocked(image) else 1
        return self._reshaped(image, (channels // block, rows, columns * block), label)

    def _is_blocked(self, part: str) -> bool:
        return any(part in parts and name in self.in_blocks for name, parts in self.parts.items())

    def _image(self, lines: str, name: str, rows: Rows, label: str) -> str:
        """What `_lines` made, as an image of some rows of `name` again."""
        _, channels, _, columns = shape_of(self.kernels, name)
        return self._reshaped(lines, (1, channels, rows[1] - rows[0], columns), label)

    def _reshaped(self, source: str, shape: Sequence[int], label: str) -> str:
        result = self._new(label, shape)
        target = self._constant(f"{label}/rows", shape)
        self._add(make_node("Reshape", [source, target], [result], name=result), None)
        return result

    def _cut(self, source: str, axis: int, begin: int, rows: Rows, lane: int, label: str) -> str:
        """Some rows of a tensor that begins with row `begin`."""
        shape = list(self.graph.shape(source))
        shape[axis] = rows[1] - rows[0]
        result = self._new(label, shape)
        numbers = ([rows[0] - begin], [rows[1] - begin], [axis])
        constants = [self._constant(f"{label}/rows", each) for each in numbers]
        self._add(make_node("Slice", [source, *constants], [result], name=result), lane)
        return result

    def _joined(self, pieces: Sequence[str], label: str, lane: int | None) -> str:
        """Tensors (blocks of channels, rows, the rest) one below the other, by one core or by all."""
        if len(pieces) == 1:
            return pieces[0]
        blocks, _, rest = self.graph.shape(pieces[0])
        result = self._new(label, (blocks, sum(self.graph.shape(name)[1] for name in pieces), rest))
        self._add(make_node("Concat", pieces, [result], name=result, axis=1), lane)
        return result

    def _add(self, node: onnx.NodeProto, lane: int | None) -> None:
        self.made.append(node)
        if lane is not None:
            self.lane_of[node.output[0]] = lane

    def _tensor(self, name: str, like: str, rows: Rows) -> str:
        """A new tensor of some rows of an image."""
        _, channels, _, columns = shape_of(self.kernels, like)
        return self._new(name, (1, channels, rows[1] - rows[0], columns))

    def _new(self, label: str, shape: Sequence[int]) -> str:
        name = self.graph.fresh(f"{label}/rows{len(self.graph.tensors)}")
        self.graph.tensors[name] = TensorSpec(name, "float32", tuple(shape))
        return name

    def _constant(self, label: str, numbers: Sequence[int]) -> str:
        name = self.graph.fresh(f"{label}{len(self.graph.weights)}")
        return self.graph.add_weight(name, np.array(numbers, np.int64))
