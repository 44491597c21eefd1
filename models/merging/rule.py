"""The one definition of which operators may be merged.

Convolutions of one input are stacked along their output channels (thesis, section 3.2.2), with smaller kernels
zero-padded to the largest. Products of one input with weight matrices are stacked along the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from iosched.models.graph import AttributeValue, Operator

_FLOATS = ("bfloat", "float")
_FREE = frozenset({"kernel_shape", "out_channels", "out_features", "pads"})  # attributes that may differ


@dataclass(frozen=True)
class MergeKey:
    """The properties that operators must share to be merged.

    Attributes:
        type: the operator's type.
        input: the tensor that the operator reads.
        weight_type: the element type of the weights.
        settings: all attributes except kernel size, padding and number of results.
        centre: of a convolution, twice the padding of every side minus the kernel's reach, and the kernel's parity on
            every axis. Equal if zero-padded kernels stay centred: on every side of every operator, `pad_merged - pad_op
            == dilation * (kernel_merged - kernel_op) / 2`. Equal output sizes follow.
        form: of a product, the numbers of its constants and nodes. onnxruntime fuses a product's own bias and a
            following Add differently, so those cannot be merged.

    Equal input, stride and output size do not suffice: 3x3 with padding 1 and 2x2 with padding 0, both of stride 2,
    agree on a 4x4 input, but no zero padding aligns their taps, and the results are wrong.
    """

    type: str
    input: str
    weight_type: str
    settings: tuple[tuple[str, AttributeValue], ...]
    centre: tuple[tuple[int, ...], tuple[int, ...]]
    form: tuple[int, ...]


def merge_key(operator: Operator) -> MergeKey | None:
    """The key that merged operators must share; None if the operator can never be merged."""
    if not operator.merges or len(operator.inputs) != 1 or len(operator.outputs) != 1 or not operator.weights:
        return None
    is_product = operator.integer("out_features") > 0
    if is_product and not _biases_are_rows(operator):
        return None
    centre = ((), ()) if is_product else _centre(operator)
    if centre is None:
        return None
    settings = tuple((key, value) for key, value in operator.attributes if key not in _FREE)
    form = (len(operator.weights), len(operator.nodes)) if is_product else ()
    types = {spec.dtype for spec in operator.weights if spec.dtype.startswith(_FLOATS)}
    if len(types) != 1:
        return None
    return MergeKey(operator.type, operator.inputs[0], types.pop(), settings, centre, form)


def refusal(operators: Sequence[Operator]) -> str | None:
    """Why these operators may not be merged, for messages; None if they may."""
    if len({operator.name for operator in operators}) < max(len(operators), 2):
        return "merging needs at least two different operators"
    first = merge_key(operators[0])
    for operator in operators:
        key = merge_key(operator)
        if key is None or first is None:
            return _why_never(operator if key is None else operators[0])
        if key != first:
            return f"{operators[0].name!r} and {operator.name!r} cannot be merged exactly: {_difference(first, key)}"
    return None


def _why_never(operator: Operator) -> str:
    if operator.attribute("quantized") is not None or "DequantizeLinear" in operator.node_types:
        return f"{operator.name!r} is quantized; only floating-point operators can be merged"
    return f"{operator.name!r} cannot be merged with any operator"


def merged_size(operators: Sequence[Operator]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kernel size and padding of the convolution that `operators` merge into."""
    kernels = [operator.integers("kernel_shape") for operator in operators]
    kernel = tuple(max(sizes) for sizes in zip(*kernels, strict=True))
    first = operators[0]
    dilations = first.integers("dilations")
    grown = tuple(by * (to - own) // 2 for by, to, own in zip(dilations, kernel, kernels[0], strict=True))
    return kernel, tuple(pad + more for pad, more in zip(first.integers("pads"), grown * 2, strict=True))


def _centre(operator: Operator) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """See `MergeKey.centre`; None unless it is an ungrouped convolution with constant weights and no residual."""
    if operator.integer("out_channels") == 0 or operator.integer("group") != 1 or operator.integer("residual"):
        return None
    kernel, pads, strides, dilations = (
        operator.integers(key) for key in ("kernel_shape", "pads", "strides", "dilations")
    )
    if not kernel or len(pads) != 2 * len(kernel) or not len(strides) == len(dilations) == len(kernel):
        return None
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    offsets = tuple(2 * pad - extent for pad, extent in zip(pads, [*reach, *reach], strict=True))
    return offsets, tuple(size % 2 for size in kernel)


def _biases_are_rows(operator: Operator) -> bool:
    """Whether the operator is a product with a weight matrix, plus at most one number for each column."""
    columns = operator.integer("out_features")
    biases = [spec.shape or () for spec in operator.weights[1:]]
    return columns > 0 and all(is_row(shape, columns) for shape in biases)


def is_row(shape: Sequence[int], columns: int) -> bool:
    """Whether a constant of `shape` has one number for each column, or one for all."""
    return set(shape[:-1]) <= {1} and set(shape[-1:]) <= {1, columns}


def _difference(one: MergeKey, other: MergeKey) -> str:
    name = next(item.name for item in fields(MergeKey) if getattr(one, item.name) != getattr(other, item.name))
    if name == "centre":
        return "zero-padded to one size, their kernels would not stay centred"
    if name == "settings":
        names = sorted({key for key, _ in set(one.settings) ^ set(other.settings)})
        return f"they differ in {', '.join(names)}"
    return f"they differ in {name.replace('_', ' ')}"
