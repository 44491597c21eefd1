"""Which convolutions may be merged into one (thesis, section 3.2.2; strategy "merge").

Convolutions of one input are stacked along their output channels; smaller kernels are padded with zeros to the size
of the largest, and the result is split again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from iosched.models.graph import AttributeValue, ComputationGraph, Operator

_FREE = frozenset({"kernel_shape", "out_channels", "pads"})  # the attributes that may differ


def merge_key(operator: Operator) -> Hashable | None:
    """What operators must have in common to be merged; None for an operator that never merges.

    The condition is that for every operator and on every side
    `pad_merged - pad_op == dilation * (kernel_merged - kernel_op) / 2`, so that its taps stay in the centre of the
    zero-padded kernel. It holds for all pairs at once when `2 * pad - dilation * (kernel - 1)` and the kernel's parity
    agree on every axis; equal output sizes follow.

    Equal input, stride and output size are not enough: 3x3 with padding 1 and stride 2, beside 2x2 with padding 0 and
    stride 2, agree on a 4x4 input (both give 2x2), but no zero padding puts the 2x2 taps in place, and the numbers
    come out wrong.
    """
    if operator.type != "Conv" or len(operator.inputs) != 1 or len(operator.outputs) != 1 or not operator.weights:
        return None
    attributes = dict(operator.attributes)
    kernel, pads, strides, dilations = (
        _integers(attributes, key) for key in ("kernel_shape", "pads", "strides", "dilations")
    )
    if not kernel or len(pads) != 2 * len(kernel) or not len(strides) == len(dilations) == len(kernel):
        return None
    if attributes.get("group") != 1:
        return None
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    offsets = tuple(2 * pad - extent for pad, extent in zip(pads, [*reach, *reach], strict=True))
    others = tuple((key, value) for key, value in operator.attributes if key not in _FREE)
    dtype = operator.weights[0].dtype
    return operator.inputs, offsets, tuple(size % 2 for size in kernel), dtype, others


def can_merge(graph: ComputationGraph, operators: Iterable[str]) -> bool:
    """Whether two or more operators of `graph` may run as one merged convolution; see `merge_key`."""
    names = list(operators)
    keys = {merge_key(graph.by_name[name]) for name in names}
    return len(names) > 1 and len(set(names)) == len(names) and len(keys) == 1 and None not in keys


def merge_classes(graph: ComputationGraph, operators: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The largest sets of `operators` that may be merged; every subset of two or more may be merged too."""
    classes: dict[Hashable, list[str]] = {}
    for name in operators:
        key = merge_key(graph.by_name[name])
        if key is not None:
            classes.setdefault(key, []).append(name)
    return tuple(tuple(names) for names in classes.values() if len(names) > 1)


def _integers(attributes: Mapping[str, AttributeValue], key: str) -> tuple[int, ...]:
    value = attributes.get(key, ())
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()
