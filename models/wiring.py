"""Producers and consumers of the tensors of an ONNX graph, subgraphs included."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

import onnx

from iosched.models.errors import InvalidModelError
from iosched.models.node_attributes import copied, subgraphs

STANDARD_DOMAINS = ("", "ai.onnx")

Key = TypeVar("Key", bound=Hashable)


def is_standard(node: onnx.NodeProto, *types: str) -> bool:
    """Whether the node's operator is in ONNX's own domain; if `types` are given, one of these."""
    return node.domain in STANDARD_DOMAINS and (not types or node.op_type in types)


def standard_opset(proto: onnx.ModelProto) -> int:
    """The imported version of ONNX's own operators; 0 if none."""
    return max((item.version for item in proto.opset_import if item.domain in STANDARD_DOMAINS), default=0)


def nodes_within(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """All nodes of `graph` and of its subgraphs."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from nodes_within(inner)


def captures(node: onnx.NodeProto) -> tuple[str, ...]:
    """Outer tensors that the subgraphs of `node` read, each once, in order of first use."""
    return tuple(dict.fromkeys(name for graph in subgraphs(node) for name in _free_names(graph)))


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Every tensor that `node` reads: its inputs (with repetitions) and captures."""
    return (*filter(None, node.input), *captures(node))


def writes(node: onnx.NodeProto) -> tuple[str, ...]:
    """The outputs of `node` that are not omitted."""
    return tuple(filter(None, node.output))


def producers(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """The index of the node that computes each tensor. Raises if two compute one tensor."""
    found: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in writes(node):
            if name in found:
                raise InvalidModelError(f"tensor {name!r} is computed twice; tensor names must be unique.")
            found[name] = index
    return found


def topological_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The indices of `nodes` in a stable topological order; O((nodes + edges) log nodes). Raises for cycles."""
    producer = producers(nodes)
    waits = [{producer[name] for name in reads(node) if name in producer} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, before in enumerate(waits):
        for other in before:
            readers[other].append(index)
    missing = [len(before) for before in waits]
    ready = [index for index, count in enumerate(missing) if count == 0]
    heapify(ready)
    order = []
    while ready:
        order.append(index := heappop(ready))
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heappush(ready, reader)
    if len(order) < len(nodes):
        raise InvalidModelError(_cycle_message(nodes, set(range(len(nodes))) - set(order)))
    return order


def dependencies_first(roots: Iterable[Key], before: Callable[[Key], Iterable[Key]]) -> list[Key]:
    """`roots` and all their dependencies, each once and after the keys that `before` returns for it.

    Depth-first without recursion; there must be no cycle. O(keys + edges).
    """
    placed: dict[Key, None] = {}
    stack = list(roots)[::-1]
    while stack:
        top = stack[-1]
        waiting = [key for key in before(top) if key not in placed] if top not in placed else []
        if waiting:
            stack.extend(reversed(waiting))
        else:
            placed.setdefault(stack.pop())
    return list(placed)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Set the nodes of `graph`, in this order; they may be nodes that it has now."""
    kept = [copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _free_names(graph: onnx.GraphProto) -> Iterator[str]:
    bound = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    bound.update(sparse.values.name for sparse in graph.sparse_initializer)
    bound.update(name for node in graph.node for name in writes(node))
    for node in graph.node:
        yield from (name for name in reads(node) if name not in bound)
    yield from (value.name for value in graph.output if value.name not in bound)


def _cycle_message(nodes: Sequence[onnx.NodeProto], stuck: set[int]) -> str:
    names = [next(iter(writes(nodes[index])), nodes[index].name) for index in sorted(stuck)]
    shown = ", ".join(repr(name) for name in names[:4]) + (", ..." if len(names) > 4 else "")
    return f"the graph has a cycle through {shown}.\nONNX graphs must be acyclic; export the model again."
