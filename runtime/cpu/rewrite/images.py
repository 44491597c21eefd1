"""Recognizes images, (N, C, H, W), and the rows and columns that Pad and Slice nodes add or select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto

from iosched.models.editable_graph import EditableGraph
from iosched.models.node_attributes import text

Edges = tuple[int, int, int, int]
"""Pixels added to an image: top, left, bottom, right; negative if removed."""

Constants = Mapping[str, np.ndarray]


Range = tuple[int, int, int]
"""Rows or columns: start, stop, step."""


def is_image(graph: EditableGraph, tensor: str) -> bool:
    """Whether a tensor is a nonempty (N, C, H, W) float32 input or result of known size."""
    spec = graph.tensors.get(tensor)
    if spec is None or spec.dtype != "float32" or spec.shape is None:
        return False
    return len(spec.shape) == 4 and all(size > 0 for size in spec.shape)


def padded_edges(node: NodeProto, constants: Constants) -> Edges | None:
    """The pixels that a Pad adds to an image; None if it pads other axes, or by computed amounts."""
    pads = constants.get(node.input[1]) if len(node.input) > 1 else None
    if pads is None or pads.size != 8 or any(node.input[3:]) or any(pads[[0, 1, 4, 5]]):
        return None
    return int(pads[2]), int(pads[3]), int(pads[6]), int(pads[7])


def fills_with_zeros(node: NodeProto, constants: Constants) -> bool:
    """Whether a Pad adds zeros."""
    fill = constants.get(node.input[2]) if any(node.input[2:3]) else np.zeros(())
    return text(node, "mode", "constant") == "constant" and fill is not None and not fill.any()


def sliced_ranges(node: NodeProto, constants: Constants, shape: Sequence[int]) -> tuple[Range, Range] | None:
    """The rows and columns that a Slice selects from an image of `shape`; None if it selects channels."""
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
    return (found[2], found[3]) if whole and len(shape) == 4 else None
