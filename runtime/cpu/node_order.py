"""One order for the nodes of an optimized graph, whatever order onnxruntime wrote them in.

onnxruntime visits some nodes in the order of their addresses in memory, so that it writes the same graph in several
orders. What is first to read a tensor (`handovers.py`) would change with them, and so would the stages' signatures.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from iosched.models.wiring import producers, reads


def in_one_order(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes in a topological order that depends on no names and not on the order that they come in.

    Each output of the graph in turn comes right after all that it needs, and what a node reads comes in the order of
    its inputs. Nodes that no output needs come last, in the order that they had.

    Complexity: O(nodes + edges).
    """
    producer = producers(nodes)
    done: dict[int, None] = {}
    left = [*reversed(range(len(nodes))), *(producer[name] for name in reversed(outputs) if name in producer)]
    while left:
        index = left.pop()
        if index in done:
            continue
        needed = [producer[name] for name in reads(nodes[index]) if name in producer]
        missing = [each for each in needed if each not in done]
        if missing:
            left += [index, *reversed(missing)]
        else:
            done[index] = None
    return [nodes[index] for index in done]
