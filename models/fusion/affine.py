"""Nodes that scale and shift every channel by constants: batch normalizations, and products and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import number


@dataclass(frozen=True, eq=False)
class Affine:
    """y = x * scale + shift for every channel; both `(channels,)`, float64."""

    scale: np.ndarray
    shift: np.ndarray


def affine_of(
    node: onnx.NodeProto, source: str, constants: Mapping[str, np.ndarray], channels: int, rank: int
) -> Affine | None:
    """Scale and shift that `node` applies to `source`; None if it does anything else.

    `source` has `rank` axes, with `channels` channels along axis 1.
    """
    if node.op_type == "BatchNormalization":
        return _normalization(node, source, constants, channels)
    others = [name for name in node.input if name != source]
    if node.op_type not in ("Add", "Mul", "Sum") or len(others) != 1 or len(node.input) != 2:
        return None
    constant = constants.get(others[0])
    if constant is None or not is_per_channel(constant.shape, rank) or constant.size not in (1, channels):
        return None
    values = np.broadcast_to(np.asarray(constant, np.float64).reshape(-1), (channels,))
    return Affine(values, np.zeros(channels)) if node.op_type == "Mul" else Affine(np.ones(channels), values)


def is_per_channel(shape: Sequence[int], rank: int) -> bool:
    """Whether a constant of `shape`, broadcast to `rank` axes, varies only along axis 1 (channels)."""
    spread = (1,) * (rank - len(shape)) + tuple(shape)
    return len(spread) == rank and all(extent == 1 for axis, extent in enumerate(spread) if axis != 1)


def epsilon_of(node: onnx.NodeProto) -> float:
    """The epsilon of a batch normalization."""
    return number(node, "epsilon", 1e-5)


def _normalization(
    node: onnx.NodeProto, source: str, constants: Mapping[str, np.ndarray], channels: int
) -> Affine | None:
    found = [constants.get(name) for name in node.input[1:5]]
    arrays = [np.asarray(array, np.float64) for array in found if array is not None and array.shape == (channels,)]
    if len(arrays) != 4 or node.input[0] != source:
        return None
    gamma, beta, mean, variance = arrays
    scale = gamma / np.sqrt(variance + epsilon_of(node))
    return Affine(scale, beta - mean * scale)
