"""The contract of all mutators (Retiarii, OSDI 2020, section 3), the usual ways to find targets, and usual mutators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from iosched.models.errors import UsageError
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph import GraphView, Node
from iosched.models.mutation.layers import Layer, layers_of

Targets = tuple[Node, ...]
"""The nodes that one call of a mutator changes, in the order in which they were asked for."""

Match = Callable[[GraphView], Sequence[Targets]]
"""Finds all targets in a graph; no node is in two of them."""

KEEP = "keep"
"""Among the layers, what is there already."""


class Mutator(Protocol):
    """Finds targets in a graph, and changes the graph at each of them.

    Both methods must do the same whenever they are called with the same graph and choices: no chance, no clock.
    """

    @property
    def name(self) -> str:
        """Begins the names of its choices; no other mutator of a space has it."""

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """All places where it has something to change; `by_type`, `by_name` and `chain` are the usual ones."""

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """Change the graph at one of these places: one call is one instance of the mutator.

        Afterwards shapes have to fit together, and nothing may read what was deleted. Nodes that lead to no output any
        more are deleted then.
        """


def by_type(*types: str) -> Match:
    """Each node of one of these types ("Conv", "domain::Type") by itself."""
    return lambda graph: [(node,) for node in graph.nodes if node.type in types]


def by_name(*patterns: str) -> Match:
    """Each node by itself whose name is one of these; they may have wildcards, as "stage3/*"."""
    return lambda graph: [(node,) for node in graph.nodes if any(fnmatchcase(node.name, one) for one in patterns)]


def chain(*types: str) -> Match:
    """Nodes of these types one behind the other: nothing but the next one reads what each computes.

    Where chains overlap, the one that begins first is taken.
    """
    return lambda graph: list(_chains(graph, types))


def _chains(graph: GraphView, types: Sequence[str]) -> Iterator[Targets]:
    taken: set[str] = set()
    for first in graph.nodes if types else ():
        found = [first]
        while len(found) < len(types) and (after := _only_reader(graph, found[-1])) is not None:
            found.append(after)
        names = {node.name for node in found}
        if [node.type for node in found] == [*types] and taken.isdisjoint(names):
            taken |= names
            yield tuple(found)


def _only_reader(graph: GraphView, node: Node) -> Node | None:
    found = {reader.name: reader for tensor in node.outputs if tensor for reader in graph.consumers(tensor)}
    is_returned = not set(node.outputs).isdisjoint(graph.outputs.values())
    return next(iter(found.values())) if len(found) == 1 and not is_returned else None


@dataclass(frozen=True)
class _Matching:
    name: str
    where: Match

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """See `Mutator`."""
        return self.where(graph)


@dataclass(frozen=True)
class OperatorMutator(_Matching):
    """Puts one of several layers in the place of each match, a node or a chain; what comes out keeps its shape.

    Attributes:
        name: begins the names of its choices.
        where: what is replaced; see `Match`.
        layers: names of layers ("conv3", see `layer_of`), or layers of one's own by name. "keep" leaves what is there.
    """

    layers: Sequence[str] | Mapping[str, Layer]

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        chosen = edit.choose(list(self.layers), "layer")
        if chosen == KEEP:
            return
        layer = layers_of(self.layers if isinstance(self.layers, Mapping) else [chosen])[chosen]
        source = next((name for name in targets[0].inputs if edit.graph.is_computed(name)), None)
        if source is None:
            raise UsageError(f"node {targets[0].name!r} reads nothing that is computed")
        old = targets[-1].outputs[0]
        edit.redirect(old, layer(edit, source, edit.graph.shape(old), f"{old}/{chosen}"))


@dataclass(frozen=True)
class InsertingMutator(_Matching):
    """Puts up to `most` layers behind each match, one behind the other; they keep the shape of what comes out of it.

    Attributes:
        name: begins the names of its choices.
        where: behind what; see `Match`.
        layers: names of layers ("conv3", see `layer_of`), or layers of one's own by name.
        most: how many there are at most.
    """

    layers: Sequence[str] | Mapping[str, Layer]
    most: int = 1

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        layers, source = layers_of(self.layers), targets[-1].outputs[0]
        shape = edit.graph.shape(source)
        for index in range(edit.choose(range(self.most + 1), "inserted")):
            chosen = edit.choose(list(layers), f"layer{index}")
            before = edit.graph
            after = layers[chosen](edit, source, shape, f"{targets[-1].outputs[0]}/{chosen}")
            if after != source:
                new = [node for node in edit.graph.consumers(source) if not before.has_node(node.name)]
                edit.redirect(source, after, but=new)
                source = after


@dataclass(frozen=True)
class InputMutator(_Matching):
    """Lets each match read other tensors of the same type and shape, none of which is computed from it.

    Attributes:
        name: begins the names of its choices.
        where: what is to read something else: the first node of each match; see `Match`.
        most: among how many tensors it chooses at most: the one that it reads now, and those computed last before it.
    """

    most: int = 4

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        for place, tensor in enumerate(targets[0].inputs):
            if edit.graph.is_computed(tensor):
                alike = itertools.islice(_alike(edit.graph, targets[0], tensor), self.most - 1)
                chosen = edit.choose([tensor, *alike], f"input{place}")
                if chosen != tensor:
                    edit.connect(chosen, targets[0], place)


def _alike(graph: GraphView, node: Node, tensor: str) -> Iterator[str]:
    """What could be read by `node` in the place of `tensor`, the last computed first."""
    wanted, later = graph.spec(tensor), graph.editable.computed_from(node.name)
    if wanted is None or wanted.shape is None:
        return
    earlier = [name for one in graph.nodes if one.name not in later for name in one.outputs if name]
    for name in reversed([*graph.inputs, *earlier]):
        found = graph.spec(name)
        if name != tensor and found is not None and (found.dtype, found.shape) == (wanted.dtype, wanted.shape):
            yield name
