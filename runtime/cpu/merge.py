"""Merged convolutions on the kernel graph: one convolution in place of several that read the same tensor.

Kernels are padded with zeros around their centres and stacked along output channels; this is exact under the rule of
`scheduler.merge.can_merge`, which the caller has checked. A Split hands the parts on: at batch 1 it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from iosched.models.graph import TensorSpec
from iosched.runtime.cpu.kernel_graph import KernelGraph

_NCHWC = "com.microsoft.nchwc"


def merge_nodes(
    kernels: KernelGraph, nodes: Mapping[str, tuple[int, ...]], units: Sequence[str]
) -> tuple[KernelGraph, dict[str, tuple[int, ...]]] | None:
    """Replaces the convolutions of `units` by one merged convolution and a Split.

    Args:
        nodes: for each unit its nodes.
        units: at least two units of one merge stage.

    Returns:
        The changed graph and the changed node lists (all new nodes belong to the first unit), or None where the
        optimized nodes do not allow it: a unit of several nodes, a fused sum, an unknown weight layout.
    """
    indices = [nodes[unit][0] for unit in units if len(nodes[unit]) == 1]
    parts = [kernels.nodes[index] for index in indices]
    if len(parts) != len(units) or not _alike(kernels, parts):
        return None
    size = np.max([kernels.weights[node.input[1]].shape[2:] for node in parts], axis=0)
    weights = [_padded(kernels, node, size) for node in parts]
    if any(weight is None for weight in weights):
        return None
    name = "merged:" + "+".join(node.output[0] for node in parts)
    constants = {
        f"{name}/weight": np.concatenate([weight for weight in weights if weight is not None]),
        f"{name}/bias": np.concatenate([_bias(kernels, node) for node in parts]),
    }
    changed = _with_merged(kernels, parts, name, size, constants)
    count = len(kernels.nodes)
    lists = {**nodes, **dict.fromkeys(units[1:], ()), units[0]: (count, count + 1)}
    return changed, lists


def _alike(kernels: KernelGraph, parts: Sequence[onnx.NodeProto]) -> bool:
    """Whether the nodes are plain convolutions of one input that differ in kernel size and padding alone."""
    first = parts[0]
    return all(
        node.op_type in ("Conv", "FusedConv")
        and (node.domain, node.op_type, node.input[0]) == (first.domain, first.op_type, first.input[0])
        and len(node.input) <= 3
        and all(name in kernels.weights for name in node.input[1:] if name)
        and _settings(node) == _settings(first)
        and kernels.tensors[node.output[0]].is_static
        and all(a.s in (b"", b"NOTSET") for a in node.attribute if a.name == "auto_pad")
        for node in parts
    )


def _settings(node: onnx.NodeProto) -> dict[str, object]:
    sized = ("kernel_shape", "pads", "auto_pad")
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name not in sized}


def _padded(kernels: KernelGraph, node: onnx.NodeProto, size: np.ndarray) -> np.ndarray | None:
    """The node's weight with its kernel zero-padded to `size`, in the memory layout that it has."""
    weight = kernels.weights[node.input[1]]
    out_channels, in_channels, *kernel = weight.shape
    before = [(int(want) - have) // 2 for want, have in zip(size, kernel, strict=True)]
    if not any(before):
        return weight
    layout = _layout(kernels, node.domain, out_channels, in_channels)
    if layout is None:
        return None
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


def _bias(kernels: KernelGraph, node: onnx.NodeProto) -> np.ndarray:
    if len(node.input) > 2 and node.input[2]:
        return kernels.weights[node.input[2]]
    weight = kernels.weights[node.input[1]]
    return np.zeros(weight.shape[0], weight.dtype)


def _with_merged(
    kernels: KernelGraph,
    parts: Sequence[onnx.NodeProto],
    name: str,
    size: np.ndarray,
    constants: Mapping[str, np.ndarray],
) -> KernelGraph:
    convolution = _resized(kernels, parts[0], size)
    convolution.name = name
    convolution.input[:] = [parts[0].input[0], *constants]
    convolution.output[:] = [name]
    specs = [kernels.tensors[node.output[0]] for node in parts]
    channels = [(spec.shape or ())[1] for spec in specs]
    split = _split_node(kernels, name, [spec.name for spec in specs], channels)
    shape = specs[0].shape or ()
    merged = TensorSpec(name, specs[0].dtype, (shape[0], sum(channels), *shape[2:]))
    return replace(
        kernels,
        nodes=(*kernels.nodes, convolution, split),
        weights={**kernels.weights, **constants, f"{name}/sizes": np.array(channels, np.int64)},
        tensors={**kernels.tensors, name: merged},
    )


def _split_node(kernels: KernelGraph, name: str, outputs: list[str], channels: list[int]) -> onnx.NodeProto:
    if kernels.opsets.get("", 1) < 13:  # sizes became an input in opset 13
        return onnx.helper.make_node("Split", [name], outputs, name=f"{name}/split", axis=1, split=channels)
    return onnx.helper.make_node("Split", [name, f"{name}/sizes"], outputs, name=f"{name}/split", axis=1)


def _resized(kernels: KernelGraph, node: onnx.NodeProto, size: np.ndarray) -> onnx.NodeProto:
    """A copy of `node` for a kernel of `size`: as much padding more on every side as the kernel's reach grew there."""
    kernel = kernels.weights[node.input[1]].shape[2:]
    pads, dilations = _ints(node, "pads", [0] * 2 * len(kernel)), _ints(node, "dilations", [1] * len(kernel))
    grown = [by * (int(want) - have) // 2 for by, want, have in zip(dilations, size, kernel, strict=True)]
    resized = onnx.NodeProto()
    resized.CopyFrom(node)
    kept = [a for a in node.attribute if a.name not in ("kernel_shape", "pads", "auto_pad")]
    del resized.attribute[:]
    resized.attribute.extend(kept)
    resized.attribute.append(onnx.helper.make_attribute("kernel_shape", [int(extent) for extent in size]))
    resized.attribute.append(onnx.helper.make_attribute("pads", [p + g for p, g in zip(pads, grown * 2, strict=True)]))
    return resized


def _ints(node: onnx.NodeProto, name: str, default: list[int]) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), default)
