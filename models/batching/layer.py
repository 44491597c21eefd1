"""One node of every member of a group, what these nodes read, and the writer of the nodes that take their place."""

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

_SPLIT_COUNT_OPSET = 18  # since this opset a Split into equal parts has to say how many

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """The values of all members in one tensor, one behind the other along an axis.

    Attributes:
        name: of the tensor.
        axis: along which the members' values lie one behind another.
        shape: of the value of one member.
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
    """A constant of each member; one name for all where they are equal."""

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
class Layer:
    """Nodes that do the same, one of each member.

    Attributes:
        nodes: of one type, with equal attributes.
        operands: what they read at each input; None where an input is left out.
        results: the shape of each output of one member.
        opset: the version of ONNX's own operators.
    """

    nodes: tuple[onnx.NodeProto, ...]
    operands: tuple[Operand, ...]
    results: tuple[Shape, ...]
    opset: int

    @property
    def count(self) -> int:
        """How many members there are."""
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
        """The shape of what one member computes."""
        return self.results[0]

    def constant(self, position: int) -> Constants | None:
        """The constants at an input; None where there are none."""
        operand = self._at(position)
        return operand if isinstance(operand, Constants) else None

    def computed(self, position: int) -> Joined | Single | None:
        """What is computed and read at an input; None where nothing is."""
        operand = self._at(position)
        return operand if isinstance(operand, Joined | Single) else None

    def _at(self, position: int) -> Operand:
        return self.operands[position] if position < len(self.operands) else None

    def names(self) -> list[str]:
        """What one node reads in place of the members' nodes, where all have the same constants."""
        return ["" if operand is None else operand.name for operand in self.operands]

    def joined(self) -> tuple[Joined, ...]:
        """The operands of which every member has its own."""
        return tuple(operand for operand in self.operands if isinstance(operand, Joined))


Axes = Mapping[int, int]
"""Along which axes a layer's operands may be joined, the best first, and along which its results then are.

Empty where the layer cannot become one node. All joined operands of a layer are joined along one axis.
"""


def same(axes: Iterable[int]) -> Axes:
    """Each of these axes for the operands, and the same one for the results."""
    return {axis: axis for axis in axes}


@dataclass(frozen=True, eq=False)
class Writer:
    """Adds to a graph, behind all nodes that it has.

    Attributes:
        graph: is changed.
        results: the joined tensors of batched operators, by the names that the members have for their parts.
        nodes: those that were added, in order.
    """

    graph: EditableGraph
    results: dict[tuple[str, ...], Joined] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    _known: dict[tuple[object, ...], Joined] = field(default_factory=dict)

    def fresh(self, name: str, count: int) -> str:
        """A new name for the joined tensor of `count` members, the first of which has this name for its part."""
        candidate = f"{name}@{count}"
        while candidate in self._taken or self.graph.has(candidate):
            candidate += "_"
        self._taken.add(candidate)
        return candidate

    def add(self, like: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
        """Add a node of the type and with the attributes of `like`, which may be changed in the new node."""
        node = helper.make_node(like.op_type, inputs, outputs, domain=like.domain)
        node.attribute.extend(like.attribute)
        return self._append(node)

    def make(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int | Sequence[int]) -> str:
        """Add a node of ONNX's own domain; its output is returned."""
        assign(self._append(helper.make_node(op_type, inputs, [output])), **attributes)
        return output

    def one(self, layer: Layer, axis: int, inputs: Sequence[str]) -> list[Joined]:
        """Add one node like the members', which computes one tensor, joined along `axis`."""
        name = self.fresh(layer.node.output[0], layer.count)
        self.add(layer.node, inputs, [name])
        return [Joined(name, axis, layer.shape)]

    def constant(self, name: str, value: np.ndarray, count: int) -> str:
        """Add a constant for `count` members, made of those of which the first has this name."""
        return self.graph.add_weight(self.fresh(name, count), value)

    def along(self, constants: Constants, axis: int) -> str:
        """Add the members' constants one behind the other along `axis`."""
        values = constants.values
        return self.constant(constants.name, concatenated(values, axis), len(values))

    def spread(self, constants: Constants, rank: int, axis: int, extent: int) -> str:
        """Add the members' constants as one that meets, member by member, tensors joined along `axis`.

        Args:
            constants: they spread over a tensor of `rank` axes by the rules of broadcasting.
            rank: of what they meet.
            axis: along which that is joined.
            extent: of one member along `axis`.
        """
        rows = []
        for value in constants.values:
            whole = value.reshape((1,) * (rank - value.ndim) + value.shape)
            shape = tuple(extent if index == axis else size for index, size in enumerate(whole.shape))
            rows.append(np.broadcast_to(whole, shape))
        return self.constant(constants.name, concatenated(rows, axis), len(rows))

    def reshaped(self, name: str, shape: Shape, called: str, count: int) -> str:
        """Add a Reshape of a tensor to `shape`, for `count` members; `called` begins the result's name."""
        target = self.constant(f"{called}/shape", np.array(shape, np.int64), count)
        return self.make("Reshape", [name, target], self.fresh(called, count))

    def join(self, names: tuple[str, ...], axis: int, shape: Shape) -> Joined:
        """The tensors of all members, each of `shape`, in one: a batched operator's result, or joined here once."""
        if names in self.results:
            return self.results[names]
        key = (names, axis)
        if key not in self._known:
            name = self.make("Concat", names, self.fresh(f"{names[0]}/joined", len(names)), axis=axis)
            self._known[key] = Joined(name, axis, shape)
        return self._known[key]

    def split(self, joined: Joined, names: Sequence[str]) -> None:
        """Give the members' values in a joined tensor names of their own.

        Sizes are equal, and are not said: of many members they would be too large to be in the graph.
        """
        node = self._append(helper.make_node("Split", [joined.name], names, axis=joined.axis))
        if self.graph.opset >= _SPLIT_COUNT_OPSET:
            assign(node, num_outputs=len(names))

    def relaid(self, joined: Joined, axis: int, count: int) -> Joined:
        """The same values joined along another axis; made once.

        The members get an axis of their own, which is moved. Where all axes that it passes have extent 1, as the first
        has at batch 1, nothing moves in memory, and one Reshape does it.
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
            apart = (*shape[: joined.axis], count, *shape[joined.axis :])
            order = [index for index in range(len(apart)) if index != joined.axis]
            order.insert(axis, joined.axis)
            name = self.reshaped(name, apart, f"{joined.name}/apart", count)
            name = self.make("Transpose", [name], self.fresh(f"{joined.name}/moved", count), perm=order)
        return self.reshaped(name, scaled(shape, axis, count), f"{joined.name}/axis{axis}", count)

    def _append(self, node: onnx.NodeProto) -> onnx.NodeProto:
        self.graph.append(node)
        self.nodes.append(node)
        return node


def concatenated(arrays: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The arrays one behind the other; in O(1) memory where one element fills them all."""
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
    """Whether a constant that meets tensors of `rank` axes differs from place to place along `axis`."""
    own = axis - (rank - constants.first.ndim)
    return own >= 0 and constants.first.shape[own] > 1
