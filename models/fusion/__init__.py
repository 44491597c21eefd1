"""Fusion patterns: each, in a separate file, decides which ONNX nodes make one operator.

A pattern is a function `match(graph, node, fusions) -> Fusion | None`, called for every node in topological order;
`fusions` has the fusions found so far. A new fusion takes nodes of no fusion, or replaces whole fusions. A tensor
inside a fusion has exactly one reader and is no graph output, so no cycle can arise between fusions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion import conv, integer_product, matmul, quantized, relu_conv, sep_conv, sums
from iosched.models.fusion.queries import Fusion, Fusions, depths

Pattern = Callable[[EditableGraph, onnx.NodeProto, Fusions], Fusion | None]

PATTERNS: tuple[Pattern, ...] = (
    sep_conv.match, conv.match, relu_conv.match, matmul.match, integer_product.match, sums.match,
    quantized.match,
)  # fmt: skip
"""The patterns in order of precedence: the first match takes a node."""


def find_fusions(graph: EditableGraph) -> tuple[Fusion, ...]:
    """Group the nodes of a graph into operators, in topological order; each node is in one.

    O(patterns * (nodes + edges)); folding a chain of n sums takes O(n^2).
    """
    nodes = graph.nodes
    place = {node_name(node): index for index, node in enumerate(nodes)}
    fusions = Fusions(depths(graph))
    for match in PATTERNS:
        for node in nodes:
            fusion = match(graph, node, fusions)
            if fusion is not None and _may_take(fusion, fusions):
                inside, added = (tuple(sorted(names, key=place.__getitem__)) for names in (fusion.nodes, fusion.sums))
                fusion = replace(fusion, nodes=inside, sums=added)
                fusions.by_node.update(dict.fromkeys(fusion.nodes, fusion))
    result = [fusions.of(node) or Fusion(node.op_type, (node_name(node),), node_name(node)) for node in nodes]
    # The last node computes a fusion's result, so its place is the fusion's.
    return tuple(sorted(dict.fromkeys(result), key=lambda fusion: place[fusion.nodes[-1]]))


def _may_take(fusion: Fusion, fusions: Fusions) -> bool:
    """Whether the fusion has all or none of the nodes of every other fusion."""
    members = set(fusion.nodes)
    return all(members.issuperset(fusions.by_node[name].nodes) for name in fusion.nodes if name in fusions.by_node)
