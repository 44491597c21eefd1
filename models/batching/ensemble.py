"""The models of a composed model as batching sees them: whose each operator is, and what operators are alike."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from iosched.models.graph import ComputationGraph

Group = tuple[str, ...]
"""Operators that become one, in the order of their members."""


@dataclass(frozen=True)
class Likeness:
    """What an operator is, as far as batching goes by it.

    Attributes:
        key: equal for operators that are alike in type, attributes and the shapes of all that they read and write.
        batches: whether operators of this key can become one.
        spreads: whether such a group takes one tensor that all of its operators read as it is, not repeated.
    """

    key: str
    batches: bool = True
    spreads: bool = False


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Several models in one computation graph.

    Attributes:
        graph: of the composed model.
        order: all operators in one topological order that depends on the wiring alone; it orders each member, too.
        owners: for each operator the members whose outputs need it; bit i stands for member i.
        likeness: of each operator, what it must have in common with those of its group.
        reads: what each operator reads, port by port: equal ports of alike operators do the same.
    """

    graph: ComputationGraph
    order: tuple[str, ...]
    owners: Mapping[str, int]
    likeness: Mapping[str, Likeness]
    reads: Mapping[str, tuple[str, ...]]

    @cached_property
    def sequences(self) -> tuple[tuple[str, ...], ...]:
        """The operators of each member in their order, shared ones included."""
        count = max(self.owners.values(), default=0).bit_length()
        return tuple(tuple(name for name in self.order if self.owners[name] >> bit & 1) for bit in range(count))

    @cached_property
    def place(self) -> Mapping[str, tuple[int, int]]:
        """By what the operators of a group are ordered: the first owner, and the place in the order."""
        return {
            name: ((self.owners[name] & -self.owners[name]).bit_length(), index)
            for index, name in enumerate(self.order)
        }

    @cached_property
    def readers(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """For each tensor the operators that read it, and at which of their ports."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name in self.order:
            for port, tensor in enumerate(self.reads[name]):
                found.setdefault(tensor, []).append((name, port))
        return {tensor: tuple(readers) for tensor, readers in found.items()}

    @cached_property
    def source(self) -> Mapping[str, tuple[str, int]]:
        """For each computed tensor the operator that computes it, and the position among that operator's outputs."""
        return {
            tensor: (operator.name, index)
            for operator in self.graph.operators
            for index, tensor in enumerate(operator.outputs)
        }

    @cached_property
    def returned(self) -> frozenset[str]:
        """The tensors that the graph returns."""
        return frozenset(self.graph.outputs)

    def joined(self, group: Group, name: str) -> Group:
        """The group with one more operator, in the order that a group has them in."""
        index = bisect(group, self.place[name], key=self.place.__getitem__)
        return (*group[:index], name, *group[index:])

    def are_alike(self, one: str, other: str) -> bool:
        """Whether two operators may be in one group; whether that makes a cycle is another question."""
        own = self.likeness[one]
        return own.batches and one != other and own.key == self.likeness[other].key
