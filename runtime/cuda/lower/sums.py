"""Lowers sums of any number of tensors, with the activation that may follow."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from iosched.models.graph import Operator
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.elementwise import activation_of
from iosched.runtime.cuda.source.activation import IDENTITY, Activation

TYPES = ("Add", "Sum")


def lower(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], variant: int | None) -> bool:
    """A sum of sums, and the activation that may follow."""
    activation: Activation | None = IDENTITY
    sums = list(nodes)
    if nodes[-1].op_type not in TYPES:
        activation = activation_of(builder, nodes[-1])
        sums = list(nodes[:-1])
    terms = terms_of(sums[-1].output[0], sums)
    alike = all(term in builder.tensors and builder.shape(term) == builder.shape(operator.name) for term in terms)
    if activation is None or not alike:
        return False
    builder.emit(AddN(activation), terms, (operator.name,))
    return True


def terms_of(name: str, sums: Sequence[onnx.NodeProto]) -> list[str]:
    """The tensors that are summed to make `name`, in order, by the additions `sums`."""
    operands = {node.output[0]: node.input for node in sums}
    found: list[str] = []
    pending = [name]
    while pending:
        term = pending.pop()
        if term in operands:
            pending.extend(reversed(operands[term]))
        else:
            found.append(term)
    return found
