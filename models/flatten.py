"""Makes nested Concat nodes flat: Concat(a, Concat(b, c)) along one axis is Concat(a, b, c)."""

from __future__ import annotations

import onnx

from iosched.models.node_attributes import integer
from iosched.models.wiring import is_standard, use_counts


def flatten_concats(graph: onnx.GraphProto, ranks: dict[str, int]) -> None:
    """Replace each operand that is a Concat along the same axis, and is read nowhere else, by its operands, in place.

    A Concat of one input is a copy that somebody put there on purpose, and stays. `ranks` has the number of dimensions
    of every tensor for which it is known. Complexity: O(nodes + edges).
    """
    counts = use_counts(graph)
    inner: dict[str, onnx.NodeProto] = {}
    dropped: set[str] = set()
    for node in graph.node:
        if node.op_type != "Concat" or not is_standard(node):
            continue
        terms: list[str] = []
        for name in node.input:
            found = inner.get(name)
            if found is None or _axis(found, ranks) != _axis(node, ranks):
                terms.append(name)
                continue
            terms.extend(found.input)
            dropped.add(name)
        del node.input[:]
        node.input.extend(terms)
        if len(node.input) > 1 and counts[node.output[0]] == 1:
            inner[node.output[0]] = node
    outputs = {value.name for value in graph.output}
    for name in dropped - outputs:
        graph.node.remove(inner[name])


def _axis(node: onnx.NodeProto, ranks: dict[str, int]) -> int:
    axis = integer(node, "axis", 1)
    return axis + ranks.get(node.output[0], 0) if axis < 0 else axis
