"""Values of new weights: parts of the base's weights, or seeded by names and the base's digest.

Developer notes:
    * Seeded values are the same on every machine and in every version: made of the raw bits of a generator whose
      stream numpy promises not to change, by exact operations alone. The streams of numpy's distributions may change
      from version to version.
    * They are uniform, of He's variance (He et al., ICCV 2015, eq. 10) where values are multiplied and summed.
"""

from __future__ import annotations

from hashlib import sha256
from math import prod, sqrt

import numpy as np
import onnx

from iosched.models.node_attributes import integer

_NORMALIZATIONS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization")
_SMALL = 0.05
_CHUNK = 2**20


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


def seeded(name: str, base: str, node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> np.ndarray:
    """float32 values of `shape` for the weight `name`, which `node` reads at `place`.

    Args:
        name: of the tensor.
        base: the digest of the base model.
        node: its type and attributes say what the weight is for.
        place: of the weight among the inputs.
        shape: of the weight.
    """
    centre, spread = (np.float32(value) for value in _range(node, place, shape))
    generator = np.random.PCG64(int.from_bytes(sha256(f"{base}/{name}".encode()).digest()))
    values = np.empty(prod(shape), np.float32)
    for begin in range(0, values.size, _CHUNK):
        part = values[begin : begin + _CHUNK]
        words = generator.random_raw(-(-part.size // 2)).astype("<u8", copy=False).view("<u4")[: part.size]
        part[:] = words >> np.uint32(8)  # 24 bits: as many as a float32 has exactly
        part += np.float32(0.5)
        part *= np.float32(2**-23)
        part -= np.float32(1)
        part *= spread
        part += centre
    return values.reshape(shape)


def _range(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> tuple[float, float]:
    """The middle of the values, and how far they lie around it at most."""
    fan_in = _fan_in(node, place, shape)
    if fan_in:
        return 0.0, sqrt(6 / fan_in)
    if node.op_type in _NORMALIZATIONS and place in (1, 4):  # a factor, and a variance
        return 1.0, 0.1
    if node.op_type in ("Mul", "Div"):
        return 1.0, 0.1
    if node.op_type == "PRelu":
        return 0.25, _SMALL
    return 0.0, _SMALL


def _fan_in(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> int:
    """How many products are summed; 0 where the weight is not one of products."""
    if place != 1 or len(shape) < 2:
        return 0
    if node.op_type == "Conv":
        return prod(shape[1:])
    if node.op_type == "ConvTranspose":
        return shape[0] * prod(shape[2:]) // max(integer(node, "group", 1), 1)
    if node.op_type == "Gemm":
        return shape[1] if integer(node, "transB") else shape[0]
    return shape[-2] if node.op_type == "MatMul" else 0
