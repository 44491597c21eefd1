"""Attributes of operators as plain values; convolutions in one normal form."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import onnx
from onnx import AttributeProto
from onnx.helper import get_attribute_value

from iosched.models.fusion.view import GraphView, Unit
from iosched.models.graph import AttributeValue
from iosched.models.wiring import is_standard

_CONVOLUTIONS = ("Conv", "ReluConv", "ReluSepConv")
_MAX_SHOWN_CONSTANT = 16


def unit_attributes(view: GraphView, unit: Unit) -> tuple[tuple[str, AttributeValue], ...]:
    """The operator attributes of a unit, sorted by key; see `Operator.attributes`."""
    anchor = view.nodes[unit.anchor]
    if unit.type in _CONVOLUTIONS and is_standard(anchor) and _has_kernel(view, anchor):
        found = _conv_attributes(view, unit)
    else:
        found = {**plain_attributes(anchor), **_small_constants(view, anchor), **_features(view, anchor)}
    if unit.activation is not None:
        found.update(_activation(view, unit))
    if unit.residual is not None:
        found["residual"] = 1
    if unit.sums:
        found["terms"] = _terms(view, unit)
    return tuple(sorted(found.items()))


def plain_attributes(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """A node's ONNX attributes; tensors and graphs as a hash of their bytes."""
    return {item.name: _plain(item) for item in node.attribute if item.type != AttributeProto.UNDEFINED}


def _plain(item: AttributeProto) -> AttributeValue:
    value = get_attribute_value(item)
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and all(isinstance(entry, int | float | bytes) for entry in value):
        return tuple(entry.decode("utf-8", "replace") if isinstance(entry, bytes) else entry for entry in value)
    nameless = AttributeProto()
    nameless.CopyFrom(item)
    nameless.doc_string = ""
    return f"sha256:{sha256(nameless.SerializeToString(deterministic=True)).hexdigest()[:16]}"


def _conv_attributes(view: GraphView, unit: Unit) -> dict[str, AttributeValue]:
    index = unit.anchor
    kernel = view.weights[view.nodes[index].input[1]].shape
    group = view.attribute(index, "group", 1)
    group = group if isinstance(group, int) else 1
    # Of a separable convolution, the attributes are the depthwise one's, and the channels that leave the pointwise's.
    last = next(i for i in reversed(unit.nodes) if view.is_op(i, ("Conv",)))
    rank = len(kernel) - 2
    strides, dilations = _ints(view, index, "strides", rank, 1), _ints(view, index, "dilations", rank, 1)
    return {
        "activation": "",
        "dilations": dilations,
        "group": group,
        "in_channels": kernel[1] * group,
        "kernel_shape": tuple(kernel[2:]),
        "out_channels": view.weights[view.nodes[last].input[1]].shape[0],
        "pads": _pads(view, index, tuple(kernel[2:]), strides, dilations),
        "strides": strides,
    }


def _features(view: GraphView, node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """Rows and columns of the matrix of weights that a product multiplies by."""
    factor = view.weights.get(node.input[1]) if node.op_type in ("Gemm", "MatMul") and is_standard(node) else None
    if factor is None or factor.ndim != 2 or node.input[0] in view.weights:
        return {}
    is_transposed = any(item.name == "transB" and item.i for item in node.attribute)
    rows, columns = reversed(factor.shape) if is_transposed else factor.shape
    return {"in_features": rows, "out_features": columns}


def _has_kernel(view: GraphView, node: onnx.NodeProto) -> bool:
    kernel = view.weights.get(node.input[1]) if len(node.input) > 1 else None
    return kernel is not None and kernel.ndim >= 3


def _ints(view: GraphView, index: int, name: str, rank: int, default: int) -> tuple[int, ...]:
    found = view.attribute(index, name)
    return tuple(int(entry) for entry in found) if isinstance(found, list) and found else (default,) * rank


def _pads(
    view: GraphView, index: int, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[int, ...]:
    """(begin of each axis, end of each axis), with auto_pad resolved for the bound input shape."""
    auto = view.attribute(index, "auto_pad", b"NOTSET")
    spec = view.specs.get(view.nodes[index].input[0])
    shape = () if spec is None or spec.shape is None else spec.shape
    found = automatic_pads(auto.decode() if isinstance(auto, bytes) else "", shape[2:], kernel, strides, dilations)
    return _ints(view, index, "pads", 2 * len(kernel), 0) if found is None else found


def automatic_pads(
    mode: str, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...] | None:
    """Padding of an image of `sizes` by `auto_pad`, begins before ends; None where it says nothing that is known."""
    if mode == "VALID":
        return (0,) * (2 * len(kernel))
    if mode not in ("SAME_UPPER", "SAME_LOWER") or not sizes:
        return None
    totals = [
        max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)


def _activation(view: GraphView, unit: Unit) -> dict[str, AttributeValue]:
    node = view.nodes[unit.activation if unit.activation is not None else unit.anchor]
    if node.op_type == "Mul":  # see GraphView.next_gate
        return {"activation": "Swish"}
    parameters: dict[str, AttributeValue] = {**plain_attributes(node), **_small_constants(view, node, any_type=True)}
    return {"activation": node.op_type, **{f"activation.{key}": value for key, value in parameters.items()}}


def _small_constants(view: GraphView, node: onnx.NodeProto, *, any_type: bool = False) -> dict[str, AttributeValue]:
    """Constant inputs that say what the node does (axes, bounds, a shape) rather than what it computes with."""
    found: dict[str, AttributeValue] = {}
    for position, name in enumerate(node.input):
        array = view.weights.get(name)
        if array is None or array.size > _MAX_SHOWN_CONSTANT or array.dtype.kind not in ("fiub" if any_type else "i"):
            continue
        found[f"input_{position}"] = tuple(array.reshape(-1).tolist())
    return found


def _terms(view: GraphView, unit: Unit) -> tuple[int, ...]:
    head = next(index for index in unit.nodes if index not in unit.sums)
    summed = {name: index for index in unit.sums for name in view.nodes[index].output}

    def count(name: str) -> int:
        return sum(count(term) for term in view.nodes[summed[name]].input) if name in summed else 1

    return tuple(count(name) for name in view.nodes[head].input)
