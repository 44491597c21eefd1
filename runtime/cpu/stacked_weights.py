"""Weights of merged convolutions and products, in the memory layouts that onnxruntime gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from iosched.models.node_attributes import integer
from iosched.runtime.cpu.kernel_graph import KernelGraph

_NCHWC = "com.microsoft.nchwc"


def stacked_weight(kernels: KernelGraph, nodes: Sequence[onnx.NodeProto]) -> np.ndarray:
    """The weights of several nodes along their results, kernels zero-padded to the size of the largest.

    Every kernel of another size `is_centrable`.
    """
    weights = [kernels.weights[node.input[1]] for node in nodes]
    if weights[0].ndim == 2:
        return np.concatenate(weights, axis=weight_axis(nodes[0]))
    size = np.max([weight.shape[2:] for weight in weights], axis=0)
    return np.concatenate([_padded(kernels, node, size) for node in nodes])


def stacked_bias(kernels: KernelGraph, nodes: Sequence[onnx.NodeProto]) -> np.ndarray:
    """A number for each result; zeros where a node has no bias."""
    rows = []
    for node in nodes:
        weight = kernels.weights[node.input[1]]
        width = weight.shape[0 if weight.ndim > 2 else weight_axis(node)]
        has_bias = len(node.input) > 2 and node.input[2]
        bias = kernels.weights[node.input[2]] if has_bias else np.zeros(width, weight.dtype)
        rows.append(np.broadcast_to(bias.reshape(-1), (width,)))
    return np.concatenate(rows)


def weight_axis(node: onnx.NodeProto) -> int:
    """Of a product's matrix of weights, the axis along which results lie."""
    return 0 if integer(node, "transB") else 1


def is_centrable(kernels: KernelGraph, node: onnx.NodeProto, weights: Sequence[np.ndarray]) -> bool:
    """Whether the node's kernel can be padded with zeros to the size of the largest of `weights`."""
    weight = kernels.weights[node.input[1]]
    same = all(other.shape[2:] == weight.shape[2:] for other in weights)
    return same or _layout(kernels, node.domain, *weight.shape[:2]) is not None


def _padded(kernels: KernelGraph, node: onnx.NodeProto, size: np.ndarray) -> np.ndarray:
    """The node's weight with its kernel zero-padded to `size`, in the memory layout that it has."""
    weight = kernels.weights[node.input[1]]
    out_channels, in_channels, *kernel = weight.shape
    before = [(int(want) - have) // 2 for want, have in zip(size, kernel, strict=True)]
    layout = _layout(kernels, node.domain, out_channels, in_channels)
    if not any(before) or layout is None:
        return weight
    outer, inner = layout
    blocked = weight.reshape(*outer, *kernel, *inner)
    margins = [(0, 0)] * len(outer) + [(pad, pad) for pad in before] + [(0, 0)] * len(inner)
    return np.pad(blocked, margins).reshape(out_channels, in_channels, *size)


def _layout(
    kernels: KernelGraph, domain: str, out_channels: int, in_channels: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Axes before and after the kernel's own: OIHW, or MLAS's OIHWBo (plain input) and OIHWBiBo (blocked input)."""
    if domain != _NCHWC:
        return (out_channels, in_channels), ()
    block = kernels.channel_block
    if in_channels < block:
        return (out_channels // block, in_channels), (block,)
    if in_channels % block == 0:
        return (out_channels // block, in_channels // block), (block, block)
    return None
