"""One node of every member of a group, and what these nodes read: the form in which kinds of operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx

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
