"""Convolutions with larger kernels, whose results keep their shapes."""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.enlarging.part import Part
from iosched.models.node_attributes import assign, integers, padding
from iosched.models.wiring import is_standard

Kernel = tuple[int, ...]


def kernel_of(part: Part, operator: str) -> Kernel | None:
    """The kernel of an operator's first convolution over images; None where it has none with weights of its own."""
    node = _convolution(part, operator)
    return None if node is None else part.shape(node.input[1])[2:]


def with_kernel(part: Part, operator: str, kernel: Kernel) -> Part | None:
    """The part in which the operator's first convolution has this kernel.

    It grows by as much to both sides, and the image is padded by as much more, so that nothing else changes.

    Returns:
        None where there is no convolution, or the kernel is not larger by an even number or not smaller than the image.
    """
    node = _convolution(part, operator)
    if node is None:
        return None
    weight, image = part.weights[node.input[1]], part.shape(node.input[0])[2:]
    old = weight.shape[2:]
    sides = [(new - now) // 2 for new, now in zip(kernel, old, strict=True)]
    is_even = all(now + 2 * side == new for new, now, side in zip(kernel, old, sides, strict=True))
    is_larger = min(sides) >= 0 and max(sides) > 0
    if not is_even or not is_larger or any(new > size for new, size in zip(kernel, image, strict=True)):
        return None
    dilations = integers(node, "dilations", (1,) * len(old))
    more = [side * dilation for side, dilation in zip(sides, dilations, strict=True)] * 2
    pads = [pad + extra for pad, extra in zip(padding(node, image, old), more, strict=True)]
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[1] = f"{node.name}/kernel"
    assign(changed, auto_pad=None, pads=pads, kernel_shape=list(kernel))
    return part.changed({node.name: changed}, {changed.input[1]: _grown(weight, kernel)}, {})


def larger(kernel: Kernel, steps: int) -> Kernel:
    """The kernel with two more for each step along each axis along which it has more than one; of one by one, both."""
    grows = [extent > 1 for extent in kernel] if max(kernel) > 1 else [True] * len(kernel)
    return tuple(extent + 2 * steps * grow for extent, grow in zip(kernel, grows, strict=True))


def _convolution(part: Part, operator: str) -> onnx.NodeProto | None:
    return next((node for node in part.of(operator) if _is_convolution(part, node)), None)


def _is_convolution(part: Part, node: onnx.NodeProto) -> bool:
    if node.op_type != "Conv" or not is_standard(node) or node.input[1] not in part.weights:
        return False
    return part.weights[node.input[1]].ndim == len(part.shape(node.input[0])) == 4


def _grown(array: np.ndarray, kernel: Kernel) -> np.ndarray:
    """The weights of a larger kernel: those of the smaller one again and again."""
    shape = (*array.shape[:2], *kernel)
    if not any(array.strides):
        return np.broadcast_to(array[(0,) * array.ndim], shape) if array.size else array
    rows, columns = (np.arange(new) % old for new, old in zip(kernel, array.shape[2:], strict=True))
    grown: np.ndarray = array[:, :, rows][:, :, :, columns]
    return grown
