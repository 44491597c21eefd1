"""The kinds of operators that several models' can become one of: each has a file of its own and is listed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iosched.models.batching import (
    concatenation,
    convolution,
    elementwise,
    normalization,
    pooling,
    product,
    reduction,
    reshaping,
    selecting,
)
from iosched.models.batching.layer import Axes, Joined, Layer, Writer


@dataclass(frozen=True)
class Rule:
    """What is known of a kind of nodes.

    Attributes:
        axes: along which axes a layer of such nodes may be joined.
        write: adds one node, or several, that do the work of a layer whose operands are joined along the given axis,
            which is one of `axes`; returns the results. None where the first member's node does it as it is.
        spreads: whether such a node takes one tensor for all members as its first input, as it is.
    """

    axes: Callable[[Layer], Axes]
    write: Callable[[Layer, int, Writer], list[Joined]] | None = None
    spreads: bool = False


_KINDS: tuple[tuple[Iterable[str], Rule], ...] = (
    (concatenation.TYPES, Rule(concatenation.axes, concatenation.write)),
    (convolution.TYPES, Rule(convolution.axes, convolution.write, spreads=True)),
    (elementwise.TYPES, Rule(elementwise.axes, elementwise.write)),
    (normalization.TYPES, Rule(normalization.axes, normalization.write)),
    (pooling.TYPES, Rule(pooling.axes)),
    (product.TYPES, Rule(product.axes, product.write, spreads=True)),
    (reduction.TYPES, Rule(reduction.axes)),
    (reshaping.TYPES, Rule(reshaping.axes, reshaping.write)),
    (["Transpose"], Rule(reshaping.transposed_axes)),
    (selecting.TYPES, Rule(selecting.axes)),
    (["Gather"], Rule(selecting.gathered_axes)),
)
RULES: dict[str, Rule] = {op_type: rule for types, rule in _KINDS for op_type in types}
"""By ONNX type, of ONNX's own domain."""
