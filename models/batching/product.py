"""Products with weight matrices, and of computed matrices.

Equal weights take a larger batch; different ones become one batched product, or one wider matrix for a shared input.
"""

from __future__ import annotations

from math import prod

import numpy as np

from iosched.models.batching.layer import (
    Axes,
    Constants,
    Joined,
    MemberLayer,
    Single,
    Writer,
    concatenated,
    same,
    scaled,
)
from iosched.models.merging.rule import is_row
from iosched.models.node_attributes import integer, number

TYPES = frozenset({"Gemm", "MatMul"})
_BATCH = 0
_BROADCAST_OPSET = 7  # before, an attribute controls the bias


def axes(layer: MemberLayer) -> Axes:
    """The batch, for a weight matrix of each member; else all axes before the matrices'."""
    data, weights, bias = layer.computed(0), layer.constant(1), layer.constant(2)
    if data is None or integer(layer.node, "transA") or layer.opset < _BROADCAST_OPSET:
        return {}
    if weights is None:
        return {} if layer.node.op_type == "Gemm" else _of_computed(layer)
    if weights.first.ndim != 2 or len(data.shape) < 2 or layer.computed(2) is not None:
        return {}
    if bias is not None and not is_row(bias.first.shape, layer.shape[-1]):
        return {}
    return {_BATCH: len(layer.shape) - 1 if isinstance(data, Single) else _BATCH}


def write(layer: MemberLayer, axis: int, writer: Writer) -> list[Joined]:
    """One product."""
    if isinstance(layer.computed(0), Single):
        return _side_by_side(layer, writer)
    weights = layer.constant(1)
    if weights is None or all(each.are_equal for each in layer.constants):
        return writer.one(layer, axis, layer.names())
    return _batched(layer, weights, writer)


def _of_computed(layer: MemberLayer) -> Axes:
    whole, factors = layer.shape, [operand.shape for operand in layer.joined()]
    if len(factors) != 2 or any(len(shape) != len(whole) for shape in factors):
        return {}
    return same(axis for axis in range(len(whole) - 2) if all(shape[axis] == whole[axis] for shape in factors))


def _batched(layer: MemberLayer, weights: Constants, writer: Writer) -> list[Joined]:
    """Reshapes (members * batch, ..., in) to (members, rows, in), multiplies by (members, in, out), and back."""
    count = layer.count
    data, name, bias = layer.computed(0), layer.node.output[0], layer.constant(2)
    shape = data.shape if data else ()
    rows = writer.reshaped(layer.names()[0], (count, prod(shape[:-1]), shape[-1]), f"{name}/rows", count)
    alpha, beta = (np.asarray(number(layer.node, key, 1.0), weights.first.dtype) for key in ("alpha", "beta"))
    turned = [value.T if integer(layer.node, "transB") else value for value in weights.values]
    matrices = [(value if alpha == 1 else value * alpha)[np.newaxis] for value in turned]
    stacked = writer.constant(weights.name, concatenated(matrices, 0), count)
    found = writer.make("MatMul", [rows, stacked], writer.fresh(f"{name}/product", count))
    if bias is not None:
        added = np.stack([np.broadcast_to(value.reshape(-1), layer.shape[-1:]) * beta for value in bias.values])
        constant = writer.constant(bias.name, added[:, np.newaxis], count)
        found = writer.make("Add", [found, constant], writer.fresh(f"{name}/sum", count))
    found = writer.reshaped(found, scaled(layer.shape, _BATCH, count), name, count)
    return [Joined(found, _BATCH, layer.shape)]


def _side_by_side(layer: MemberLayer, writer: Writer) -> list[Joined]:
    weights, bias = layer.constant(1), layer.constant(2)
    inputs = layer.names()[:1]
    if weights is not None:
        inputs.append(writer.along(weights, 0 if integer(layer.node, "transB") else 1))
    if bias is not None:
        rows = [np.broadcast_to(value.reshape(-1), layer.shape[-1:]) for value in bias.values]
        inputs.append(writer.constant(bias.name, np.concatenate(rows), layer.count))
    return writer.one(layer, len(layer.shape) - 1, inputs)
