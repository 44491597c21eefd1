"""Pad and Slice of rows and columns, taken into what reads them.

Exported models often pad apart from the convolution or the pool that needs it, and shift images by a Pad and a Slice.
Each is a copy of the image, and one that leaves onnxruntime's blocked layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.node_attributes import assign, integer, integers, text
from iosched.models.wiring import is_standard, reads
from iosched.runtime.cpu.working import WorkingDraft, WorkingGraph

Edges = tuple[int, int, int, int]
"""What is added to an image: at the top, at the left, at the bottom, at the right; what is taken away is negative."""

Constants = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Ranges:
    """What a Slice takes of rows and of columns, as (start, end, step)."""

    rows: tuple[int, int, int]
    columns: tuple[int, int, int]


def padded_edges(node: onnx.NodeProto, constants: Constants) -> Edges | None:
    """What a Pad adds to the rows and columns of (N, C, H, W); None where it pads other axes, or only the run knows."""
    pads = constants.get(node.input[1]) if len(node.input) > 1 else None
    if pads is None or pads.size != 8 or any(node.input[3:]) or any(pads[[0, 1, 4, 5]]):
        return None
    return int(pads[2]), int(pads[3]), int(pads[6]), int(pads[7])


def fills_with_zeros(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether what a Pad adds is zero."""
    fill = constants.get(node.input[2]) if any(node.input[2:3]) else np.zeros(())
    return text(node, "mode", "constant") == "constant" and fill is not None and not fill.any()


def sliced_ranges(node: onnx.NodeProto, constants: Constants, shape: Sequence[int]) -> Ranges | None:
    """What a Slice takes of the rows and columns of an image of `shape`; None where it takes only some channels."""
    if len(node.input) < 3 or not all(name in constants for name in node.input[1:] if name):
        return None
    starts, ends = (constants[name].reshape(-1).tolist() for name in node.input[1:3])
    axes = constants[node.input[3]].reshape(-1).tolist() if any(node.input[3:4]) else range(len(starts))
    steps = constants[node.input[4]].reshape(-1).tolist() if any(node.input[4:5]) else [1] * len(starts)
    found = [(0, size, 1) for size in shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            return None
        found[axis % len(shape)] = (*slice(start, end, step).indices(shape[axis % len(shape)])[:2], int(step))
    whole = found[:2] == [(0, size, 1) for size in shape[:2]]
    return Ranges(found[2], found[3]) if whole and len(shape) == 4 else None


def take_in_windows(graph: WorkingGraph) -> WorkingGraph:
    """The graph with as few Pad and Slice as this file's rules leave; O(nodes + edges)."""
    draft = WorkingDraft(graph)
    # A Pad that a MaxPool alone reads is taken into it by onnxruntime, though there the zeros do not count, and results
    # are others (1.31). It must not come to that where it does not without us.
    pooled = {node.input[0] for node in graph.proto.graph.node if is_standard(node) and node.op_type == "MaxPool"}
    for node in graph.proto.graph.node:
        if (
            is_standard(node)
            and (rule := _RULES.get(node.op_type))
            and pooled.isdisjoint((node.input[0], node.output[0]))
        ):
            rule(draft, draft.nodes[node.output[0]])
    _drop_unread(draft)
    return draft.finished()


def _drop_unread(draft: WorkingDraft) -> None:
    if not draft.is_changed:
        return
    needed = {value.name for value in draft.graph.proto.graph.output}
    for name, node in reversed(list(draft.nodes.items())):
        if node.op_type in ("Pad", "Slice") and name not in needed:
            draft.drop(name)
        else:
            needed.update(reads(node))


def _zero_pad(draft: WorkingDraft, name: str) -> tuple[str, Edges] | None:
    """What `name` is an image of with zeros around it, and how many; None where it is something else."""
    node = draft.nodes.get(name)
    if node is None or not is_standard(node) or node.op_type != "Pad" or not _is_image(draft, node.input[0]):
        return None
    constants = {**draft.graph.weights, **draft.weights}
    edges = padded_edges(node, constants)
    return (node.input[0], edges) if edges is not None and fills_with_zeros(node, constants) else None


def _is_image(draft: WorkingDraft, name: str) -> bool:
    spec = draft.tensors.get(name)
    return spec is not None and spec.dtype == "float32" and spec.shape is not None and len(spec.shape) == 4


def _convolution(draft: WorkingDraft, node: onnx.NodeProto) -> None:
    weight = draft.graph.weights.get(node.input[1])
    kernel = weight.shape[2:] if weight is not None else integers(node, "kernel_shape")
    _take_in(draft, node, kernel)


def _average(draft: WorkingDraft, node: onnx.NodeProto) -> None:
    """The zeros count, as they did: only pools that count all or none of their own take them in."""
    if _take_some_pixels(draft, node):
        return
    if not integer(node, "ceil_mode") and (integer(node, "count_include_pad") or not any(integers(node, "pads"))):
        _take_in(draft, node, integers(node, "kernel_shape"), count_include_pad=1)


def _take_some_pixels(draft: WorkingDraft, node: onnx.NodeProto) -> bool:
    """An average of single pixels of a shifted image is a Slice, and zeros where it reaches beyond the image.

    Of a shift, which is a copy of the image, only the pixels are needed that the pool takes.
    """
    found, strides = _zero_pad(draft, node.input[0]), integers(node, "strides", (1, 1))
    if found is None or tuple(integers(node, "kernel_shape")) != (1, 1) or strides == (1, 1):
        return False
    if integer(node, "ceil_mode") or any(integers(node, "pads")) or text(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    source, (top, left, bottom, right) = found
    height, width = (draft.tensors[source].shape or ())[2:]
    ranges = [
        range(-first, size + min(last, 0), step)
        for first, last, size, step in zip((top, left), (bottom, right), (height, width), strides, strict=True)
    ]
    if max(top, left) > 0 or 0 in map(len, ranges) or not _is_for_one(draft, node.input[0]):
        return False
    result = node.output[0]
    missing = [size - len(part) for size, part in zip((draft.tensors[result].shape or ())[2:], ranges, strict=True)]
    slicing = (
        [part.start for part in ranges], [part.stop for part in ranges], [2, 3], [part.step for part in ranges],
    )  # fmt: skip
    names = [draft.add_weight(f"{result}/slice", np.array(numbers)) for numbers in slicing]
    sliced = make_node("Slice", [source, *names], [result])
    if any(missing):
        inner = draft.insert(sliced, result)
        shape = (*(draft.tensors[source].shape or ())[:2], *map(len, ranges))
        draft.tensors[inner] = replace(draft.tensors[inner], shape=shape)
        pads = draft.add_weight(f"{result}/pads", np.array([0, 0, 0, 0, 0, 0, *missing]))
        draft.put(make_node("Pad", [inner, pads], [result]))
    else:
        draft.put(sliced)
    return True


def _is_for_one(draft: WorkingDraft, name: str) -> bool:
    """Whether one node reads a tensor, and nobody outside."""
    is_output = any(value.name == name for value in draft.graph.proto.graph.output)
    return not is_output and sum(name in reads(node) for node in draft.nodes.values()) == 1


def _take_in(draft: WorkingDraft, node: onnx.NodeProto, kernel: Sequence[int], **changes: int) -> None:
    """Lets a node with windows of `kernel` pad its image itself."""
    found = _zero_pad(draft, node.input[0])
    if found is None or len(kernel) != 2 or text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    source, edges = found
    own = integers(node, "pads", (0,) * 4) if text(node, "auto_pad") != "VALID" else (0,) * 4
    pads = [one + other for one, other in zip(own, edges, strict=True)]
    if min(edges) < 0 or any(pad >= extent for pad, extent in zip(pads, (*kernel, *kernel), strict=True)):
        return
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0] = source
    assign(made, pads=pads, auto_pad=None, **changes)
    draft.put(made)


def _slice(draft: WorkingDraft, node: onnx.NodeProto) -> None:
    """A part of an image with zeros around it is an image with other numbers of zeros around it, or fewer than none."""
    found = _zero_pad(draft, node.input[0])
    if found is None:
        return
    source, (top, left, bottom, right) = found
    shape = draft.tensors[node.input[0]].shape or ()
    ranges = sliced_ranges(node, draft.graph.weights, shape)
    if (
        ranges is None
        or ranges.rows[2] != 1
        or ranges.columns[2] != 1
        or 0 in (draft.tensors[node.output[0]].shape or (0,))
    ):
        return
    above, before = top - ranges.rows[0], left - ranges.columns[0]
    below, behind = bottom - (shape[2] - ranges.rows[1]), right - (shape[3] - ranges.columns[1])
    height, width = (draft.tensors[source].shape or ())[2:]
    # Where nothing is taken away, onnxruntime takes the Pad into an average that may be too small for it.
    if min(above, below) <= -height or min(before, behind) <= -width or min(above, before, below, behind) >= 0:
        return
    pads = draft.add_weight(f"{node.output[0]}/pads", np.array([0, 0, above, before, 0, 0, below, behind]))
    draft.put(make_node("Pad", [source, pads], [node.output[0]]))


_RULES = {"Conv": _convolution, "AveragePool": _average, "Slice": _slice}
