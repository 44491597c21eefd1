"""Where a mutator has something to change: nodes by type, by name, or in a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from iosched.models.mutation.graph import GraphView, Node

Targets = tuple[Node, ...]
"""The nodes that one call of a mutator changes, in the order in which they were asked for."""

Match = Callable[[GraphView], Sequence[Targets]]
"""Finds all targets in a graph; no node is in two of them."""


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
    for node in graph.nodes:
        found = _chain_from(graph, node, types)
        if found and taken.isdisjoint(part.name for part in found):
            taken.update(part.name for part in found)
            yield found


def _chain_from(graph: GraphView, first: Node, types: Sequence[str]) -> Targets:
    """The chain that begins with `first`; () where there is none."""
    if not types or first.type != types[0]:
        return ()
    found = [first]
    for kind in types[1:]:
        after = _only_reader(graph, found[-1])
        if after is None or after.type != kind:
            return ()
        found.append(after)
    return tuple(found)


def _only_reader(graph: GraphView, node: Node) -> Node | None:
    readers = {reader for tensor in node.outputs if tensor for reader in graph.readers.get(tensor, ())}
    returned = not set(node.outputs).isdisjoint(graph.outputs.values())
    return graph.node(readers.pop()) if len(readers) == 1 and not returned else None
