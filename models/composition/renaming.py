"""Gives the tensors of a node other names, those inside its graphs included."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from iosched.models.node_attributes import subgraphs

Rename = Callable[[str], str]


def renamed(node: onnx.NodeProto, rename: Rename) -> onnx.NodeProto:
    """A copy of `node` in which every tensor, also of the graphs inside it, has the name that `rename` gives it."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    _rename_node(copied, rename)
    return copied


def called(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """A copy of what is said of a tensor, under another name."""
    copied = onnx.ValueInfoProto()
    copied.CopyFrom(value)
    copied.name = name
    return copied


def _rename_node(node: onnx.NodeProto, rename: Rename) -> None:
    for names in (node.input, node.output):
        names[:] = [rename(name) if name else "" for name in names]
    for graph in subgraphs(node):
        _rename_graph(graph, rename)


def _rename_graph(graph: onnx.GraphProto, rename: Rename) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = rename(value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = rename(sparse.values.name)
    for node in graph.node:
        _rename_node(node, rename)
