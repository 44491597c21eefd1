"""Moves Pad and Slice of rows and columns into the operators that read them.

Exported models often pad before a convolution or pool, and shift images by a Pad and a Slice. Each copies the image and
leaves onnxruntime's blocked layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph
from iosched.models.node_attributes import assign, integer, integers, padding, text
from iosched.models.wiring import is_standard
from iosched.runtime.cpu.rewrite.images import Edges, fills_with_zeros, is_image, padded_edges, sliced_ranges


def absorb_windows(graph: EditableGraph) -> None:
    """Remove the Pad and Slice nodes that the rules of this file cover; O(nodes + edges)."""
    # onnxruntime (1.31) moves a Pad into a MaxPool that is its only reader, which changes results: zeros do not count
    # there. This rewrite must not cause that.
    pooled = {node.input[0] for node in graph.nodes if is_standard(node, "MaxPool")}
    for node in graph.nodes:
        rule = _RULES.get(node.op_type) if is_standard(node) else None
        if rule is not None and pooled.isdisjoint((node.input[0], node.output[0])):
            rule(graph, node)


def _zero_pad(graph: EditableGraph, tensor: str) -> tuple[str, Edges] | None:
    """The image that a Pad surrounds with zeros to compute `tensor`, and the widths; None if no Pad does."""
    node = graph.producer(tensor)
    if node is None or not is_standard(node, "Pad") or not is_image(graph, node.input[0]):
        return None
    edges = padded_edges(node, graph.weights)
    return (node.input[0], edges) if edges is not None and fills_with_zeros(node, graph.weights) else None


def _auto_pad(node: NodeProto) -> str:
    return text(node, "auto_pad", "NOTSET")


def _put_pad(graph: EditableGraph, source: str, result: str, edges: Iterable[int]) -> None:
    top, left, bottom, right = edges
    pads = graph.add_integers(f"{result}/pads", (0, 0, top, left, 0, 0, bottom, right))
    graph.replace(result, make_node("Pad", [source, pads], [result], name=result))


def _convolution(graph: EditableGraph, node: NodeProto) -> None:
    is_known = node.input[1] in graph.weights
    kernel = graph.shape(node.input[1])[2:] if is_known else integers(node, "kernel_shape")
    _take_in(graph, node, kernel)


def _average(graph: EditableGraph, node: NodeProto) -> None:
    """The Pad's zeros counted before the rewrite, so the pool must count all or none of its own padding."""
    if _take_some_pixels(graph, node):
        return
    counts_evenly = integer(node, "count_include_pad") or not any(integers(node, "pads"))
    if counts_evenly and not integer(node, "ceil_mode"):
        _take_in(graph, node, integers(node, "kernel_shape"), count_include_pad=1)


def _take_some_pixels(graph: EditableGraph, node: NodeProto) -> bool:
    """Average pooling of single pixels of a shifted image is a Slice, with zeros beyond the image.

    A Slice copies only the pixels that the pool reads.
    """
    found, strides = _zero_pad(graph, node.input[0]), integers(node, "strides", (1, 1))
    if found is None or integers(node, "kernel_shape") != (1, 1) or strides == (1, 1):
        return False
    if integer(node, "ceil_mode") or any(integers(node, "pads")) or _auto_pad(node) != "NOTSET":
        return False
    source, (top, left, bottom, right) = found
    axes = zip((top, left), (bottom, right), graph.shape(source)[2:], strides, strict=True)
    ranges = [range(-first, size + min(last, 0), step) for first, last, size, step in axes]
    if max(top, left) > 0 or not all(ranges) or graph.uses(node.input[0]) > 1:
        return False
    _put_slice(graph, source, node.output[0], ranges)
    return True


def _put_slice(graph: EditableGraph, source: str, result: str, ranges: Sequence[range]) -> None:
    rows = [(part.start, part.stop, axis, part.step) for axis, part in enumerate(ranges, 2)]
    names = [graph.add_fresh_weight(f"{result}/slice", column.copy()) for column in np.array(rows).T]
    shape = (*graph.shape(source)[:2], *map(len, ranges))
    missing = np.subtract(graph.shape(result), shape)[2:]
    if not any(missing):
        graph.replace(result, make_node("Slice", [source, *names], [result], name=result))
        return
    inner = graph.add_tensor(f"{result}/inner", result, shape)
    graph.insert_before(result, make_node("Slice", [source, *names], [inner], name=inner))
    _put_pad(graph, inner, result, (0, 0, *missing))


def _take_in(graph: EditableGraph, node: NodeProto, kernel: Sequence[int], **changes: int) -> None:
    found = _zero_pad(graph, node.input[0])
    if found is None or len(kernel) != 2 or _auto_pad(node) not in ("NOTSET", "VALID"):
        return
    source, edges = found
    pads = np.add(padding(node, (), kernel), edges)
    if min(edges) < 0 or (pads >= (*kernel, *kernel)).any():
        return
    graph.set_inputs(node.output[0], [source, *node.input[1:]])
    assign(node, pads=pads.tolist(), auto_pad=None, **changes)


def _slice(graph: EditableGraph, node: NodeProto) -> None:
    """A slice of a zero-padded image is an image with more or less padding."""
    found, result = _zero_pad(graph, node.input[0]), node.output[0]
    if found is None or not is_image(graph, result):
        return
    (source, added), (height, width) = found, graph.shape(node.input[0])[2:]
    ranges = sliced_ranges(node, graph.weights, graph.shape(node.input[0]))
    if ranges is None:
        return
    (top, bottom, down), (left, right, across) = ranges
    if (down, across) != (1, 1):
        return
    removed = top, left, height - bottom, width - right
    edges = np.subtract(added, removed)
    keeps_pixels = all(min(edges[axis::2]) > -size for axis, size in enumerate(graph.shape(source)[2:]))
    # If nothing is removed, onnxruntime moves the Pad into an average that may be too small for it.
    if keeps_pixels and min(edges) < 0:
        _put_pad(graph, source, result, edges)


_RULES = {"Conv": _convolution, "AveragePool": _average, "Slice": _slice}
