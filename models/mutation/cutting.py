"""Smaller weights out of larger ones, where it is plain which part of them is meant."""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.node_attributes import integer


def cut_out(
    whole: np.ndarray, shape: tuple[int, ...], dtype: str, old: onnx.NodeProto, new: onnx.NodeProto
) -> np.ndarray | None:
    """The first channels and the middle of the kernel of a weight; None where that is not all of what is wanted.

    Args:
        whole: the weight.
        shape: of the part.
        dtype: of the part, by numpy's name.
        old: the node that reads `whole`.
        new: the node of the same operator that is to read the part in its place.
    """
    if whole.ndim != len(shape) or whole.dtype.name != dtype or not _grouped_alike(old, new, whole.shape):
        return None
    slices = []
    for axis, (size, had) in enumerate(zip(shape, whole.shape, strict=True)):
        begin = (had - size) // 2 if axis >= 2 else 0
        if size > had or (axis >= 2 and (had - size) % 2):
            return None
        slices.append(slice(begin, begin + size))
    return np.array(whole[tuple(slices)])


def _grouped_alike(old: onnx.NodeProto, new: onnx.NodeProto, shape: tuple[int, ...]) -> bool:
    """Whether channels have the same part in both: their groups are as many, or each channel is one."""
    before, after = integer(old, "group", 1), integer(new, "group", 1)
    return before == after or (len(shape) > 2 and shape[:2] == (before, 1))
