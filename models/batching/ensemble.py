"""The models of a composed model, for batching: the owners of each operator, and which operators are alike."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from iosched.models.graph import ComputationGraph

Group = tuple[str, ...]
"""Operators that are batched, in the order of their members."""


@dataclass(frozen=True)
class Likeness:
    """Whether operators can be batched together.

    Attributes:
        key: equal for operators alike in type, attributes and all shapes.
        batches: whether operators of this key can be batched.
        spreads: whether a batch reads a tensor that all its operators share unchanged, without repeating it.
    """

    key: str
    batches: bool = True
    spreads: bool = False


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Several models in one computation graph.

    Attributes:
        graph: of the composed model.
        order: all operators in a topological order that depends on the wiring alone.
        owners: for each operator, the members whose outputs need it, as bits.
        likeness: of each operator.
        reads: the tensors that each operator reads, by port; equal ports of alike operators have the same role.
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
        """The sort key of operators in a group: first owner, then position in the order."""
        return {
            name: ((self.owners[name] & -self.owners[name]).bit_length(), index)
            for index, name in enumerate(self.order)
        }

    @cached_property
    def readers(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """The operators that read each tensor, with their ports."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name in self.order:
            for port, tensor in enumerate(self.reads[name]):
                found.setdefault(tensor, []).append((name, port))
        return {tensor: tuple(readers) for tensor, readers in found.items()}

    @cached_property
    def source(self) -> Mapping[str, tuple[str, int]]:
        """The operator that computes each tensor, and the position among its outputs."""
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
        """The group with one more operator, sorted."""
        index = bisect(group, self.place[name], key=self.place.__getitem__)
        return (*group[:index], name, *group[index:])

    def are_alike(self, one: str, other: str) -> bool:
        """Whether two operators may be in one group, cycles aside."""
        own = self.likeness[one]
        return own.batches and one != other and own.key == self.likeness[other].key
