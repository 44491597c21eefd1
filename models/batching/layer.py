"""A layer, one node of every member of a group, and the writer of the nodes that replace layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper

from iosched.models.editable_graph import EditableGraph
from iosched.models.node_attributes import assign

_SPLIT_COUNT_OPSET = 18  # since this opset, a Split into equal parts needs their number

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """One tensor with the values of all members.

    Attributes:
        name: of the tensor.
        axis: along which the members' values are concatenated.
        shape: of one member's value.
    """

    name: str
    axis: int
    shape: Shape


@dataclass(frozen=True)
class Single:
    """One tensor that all members read."""

    name: str
    shape: Shape


@dataclass(frozen=True, eq=False)
class Constants:
    """A constant of each member; equal ones have one name."""

    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]

    @property
    def name(self) -> str:
        """The name of the first member's constant."""
        return self.names[0]

    @property
    def are_equal(self) -> bool:
        """Whether all members have one constant."""
        return len(set(self.names)) == 1

    @property
    def first(self) -> np.ndarray:
        """The first member's constant."""
        return self.values[0]


Operand: TypeAlias = Joined | Single | Constants | None


@dataclass(frozen=True, eq=False)
class MemberLayer:
    """Equivalent nodes, one of each member.

    Attributes:
        nodes: of one type, with equal attributes.
        operands: for each input; None if omitted.
        results: the shape of each output of one member.
        opset: the version of ONNX's own operators.
    """

    nodes: tuple[onnx.NodeProto, ...]
    operands: tuple[Operand, ...]
    results: tuple[Shape, ...]
    opset: int

    @property
    def count(self) -> int:
        """The number of members."""
        return len(self.nodes)

    @property
    def node(self) -> onnx.NodeProto:
        """The first member's node."""
        return self.nodes[0]

    @property
    def constants(self) -> tuple[Constants, ...]:
        """The operands that are constants."""
        return tuple(operand for operand in self.operands if isinstance(operand, Constants))

    @property
    def shape(self) -> Shape:
        """The shape of one member's first output."""
        return self.results[0]

    def constant(self, position: int) -> Constants | None:
        """The constants at an input, if any."""
        operand = self._at(position)
        return operand if isinstance(operand, Constants) else None

    def computed(self, position: int) -> Joined | Single | None:
        """The computed operand at an input, if any."""
        operand = self._at(position)
        return operand if isinstance(operand, Joined | Single) else None

    def _at(self, position: int) -> Operand:
        return self.operands[position] if position < len(self.operands) else None

    def names(self) -> list[str]:
        """The inputs of a node that replaces the members' nodes, if their constants are equal."""
        return ["" if operand is None else operand.name for operand in self.operands]

    def joined(self) -> tuple[Joined, ...]:
        """The operands that differ between members."""
        return tuple(operand for operand in self.operands if isinstance(operand, Joined))


Axes = Mapping[int, int]
"""The axes along which a layer's operands may all be joined, best first, with the axis of its results.

Empty if the layer cannot become one node.
"""


def same(axes: Iterable[int]) -> Axes:
    """The same axes for operands and results."""
    return {axis: axis for axis in axes}


@dataclass(frozen=True, eq=False)
class Writer:
    """Appends nodes to a graph.

    Attributes:
        graph: is changed.
        results: the joined results of batched operators, by the members' names for their parts.
        nodes: the added nodes, in order.
    """

    graph: EditableGraph
    results: dict[tuple[str, ...], Joined] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    _known: dict[tuple[object, ...], Joined] = field(default_factory=dict)

    def fresh(self, name: str, count: int) -> str:
        """A new name for the joined tensor of `count` members, from the first member's name."""
        candidate = f"{name}@{count}"
        while candidate in self._taken or self.graph.has(candidate):
            candidate += "_"
        self._taken.add(candidate)
        return candidate

    def add(self, like: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
        """Append a node with the type and attributes of `like`; its attributes may be changed."""
        node = helper.make_node(like.op_type, inputs, outputs, domain=like.domain)
        node.attribute.extend(like.attribute)
        return self._append(node)

    def make(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int | Sequence[int]) -> str:
        """Append a standard node, and return its output."""
        assign(self._append(helper.make_node(op_type, inputs, [output])), **attributes)
        return output

    def one(self, layer: MemberLayer, axis: int, inputs: Sequence[str]) -> list[Joined]:
        """Append one node like the members', with one output joined along `axis`."""
        name = self.fresh(layer.node.output[0], layer.count)
        self.add(layer.node, inputs, [name])
        return [Joined(name, axis, layer.shape)]

    def constant(self, name: str, value: np.ndarray, count: int) -> str:
        """Add a constant for `count` members, named after the first member's."""
        return self.graph.add_weight(self.fresh(name, count), value)

    def along(self, constants: Constants, axis: int) -> str:
        """Add the members' constants concatenated along `axis`."""
        values = constants.values
        return self.constant(constants.name, concatenated(values, axis), len(values))

    def spread(self, constants: Constants, rank: int, axis: int, extent: int) -> str:
        """Add the members' constants as one that broadcasts, member by member, to tensors of `rank` axes.

        These are joined along `axis`, where each member has `extent`.
        """
        rows = []
        for value in constants.values:
            whole = value.reshape((1,) * (rank - value.ndim) + value.shape)
            shape = tuple(extent if index == axis else size for index, size in enumerate(whole.shape))
            rows.append(np.broadcast_to(whole, shape))
        return self.constant(constants.name, concatenated(rows, axis), len(rows))

    def reshaped(self, name: str, shape: Shape, called: str, count: int) -> str:
        """Append a Reshape to `shape` for `count` members; `called` is the prefix of new names."""
        target = self.constant(f"{called}/shape", np.array(shape, np.int64), count)
        return self.make("Reshape", [name, target], self.fresh(called, count))

    def join(self, names: tuple[str, ...], axis: int, shape: Shape) -> Joined:
        """One tensor of all members' tensors: a batched operator's result, or a Concat, made once."""
        if names in self.results:
            return self.results[names]
        key = (names, axis)
        if key not in self._known:
            name = self.make("Concat", names, self.fresh(f"{names[0]}/joined", len(names)), axis=axis)
            self._known[key] = Joined(name, axis, shape)
        return self._known[key]

    def split(self, joined: Joined, names: Sequence[str]) -> None:
        """Give the members' parts of a joined tensor their own names.

        Sizes are equal and not listed: for many members the list would be too large for the graph.
        """
        node = self._append(helper.make_node("Split", [joined.name], names, axis=joined.axis))
        if self.graph.opset >= _SPLIT_COUNT_OPSET:
            assign(node, num_outputs=len(names))

    def relaid(self, joined: Joined, axis: int, count: int) -> Joined:
        """The values joined along another axis; made once.

        A separate axis for the members is transposed. If all axes in between have extent 1, as the batch often has, one
        Reshape suffices, without moving memory.
        """
        if joined.axis == axis:
            return joined
        key = (joined.name, axis)
        if key not in self._known:
            self._known[key] = Joined(self._moved(joined, axis, count), axis, joined.shape)
        return self._known[key]

    def _moved(self, joined: Joined, axis: int, count: int) -> str:
        shape, name = joined.shape, joined.name
        low, high = sorted((joined.axis, axis))
        if prod(shape[low:high]) != 1:
            separate = (*shape[: joined.axis], count, *shape[joined.axis :])
            order = [index for index in range(len(separate)) if index != joined.axis]
            order.insert(axis, joined.axis)
            name = self.reshaped(name, separate, f"{joined.name}/apart", count)
            name = self.make("Transpose", [name], self.fresh(f"{joined.name}/moved", count), perm=order)
        return self.reshaped(name, scaled(shape, axis, count), f"{joined.name}/axis{axis}", count)

    def _append(self, node: onnx.NodeProto) -> onnx.NodeProto:
        self.graph.append(node)
        self.nodes.append(node)
        return node


def concatenated(arrays: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The concatenated arrays; in O(1) memory if one element fills them all."""
    first = arrays[0].reshape(-1)[:1]
    if first.size and all(not any(array.strides) and array.reshape(-1)[:1] == first for array in arrays):
        extent = sum(array.shape[axis] for array in arrays)
        shape = tuple(extent if index == axis else size for index, size in enumerate(arrays[0].shape))
        return np.broadcast_to(first.reshape(()), shape)
    return np.concatenate(arrays, axis)


def scaled(shape: Shape, axis: int, count: int) -> Shape:
    """The shape of `count` tensors of `shape` joined along `axis`."""
    return tuple(size * count if index == axis else size for index, size in enumerate(shape))


def varies(constants: Constants, rank: int, axis: int) -> bool:
    """Whether a constant, broadcast to `rank` axes, varies along `axis`."""
    own = axis - (rank - constants.first.ndim)
    return own >= 0 and constants.first.shape[own] > 1
