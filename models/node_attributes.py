"""Attributes of ONNX nodes as Python values: the one place that reads and changes `NodeProto.attribute`.

Where a node does not have an attribute, or has one of another type, the readers return the default that the caller
gives. It is the default of the operator's definition, which may be another in another opset.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TypeVar

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto
from onnx.helper import get_attribute_value, make_attribute

from iosched.models.graph import AttributeValue

Copied = TypeVar("Copied", bound=Message)


def names(node: onnx.NodeProto) -> frozenset[str]:
    """The names of all attributes that the node has."""
    return frozenset(item.name for item in node.attribute)


def integer(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    """The value of an attribute that is one integer, as flags are."""
    found = _find(node, name, AttributeProto.INT)
    return default if found is None else found.i


def integers(node: onnx.NodeProto, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """The value of an attribute that is a list of integers; the default also for an empty list."""
    found = _find(node, name, AttributeProto.INTS)
    return tuple(default if found is None else found.ints or default)


def number(node: onnx.NodeProto, name: str, default: float = 0.0) -> float:
    """The value of an attribute that is one number, a float or an integer."""
    found = _find(node, name, AttributeProto.FLOAT, AttributeProto.INT)
    if found is None:
        return default
    return found.f if found.type == AttributeProto.FLOAT else float(found.i)


def numbers(node: onnx.NodeProto, name: str) -> tuple[float, ...]:
    """The value of an attribute that is a list of floats; () where the node has none."""
    found = _find(node, name, AttributeProto.FLOATS)
    return () if found is None else tuple(found.floats)


def text(node: onnx.NodeProto, name: str, default: str = "") -> str:
    """The value of an attribute that is a string."""
    found = _find(node, name, AttributeProto.STRING)
    return default if found is None else _decoded(found.s)


def tensor(node: onnx.NodeProto, name: str) -> onnx.TensorProto | None:
    """The value of an attribute that is a tensor; None where the node has none."""
    found = _find(node, name, AttributeProto.TENSOR)
    return None if found is None else found.t


def tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """All tensors that attributes hold, alone or in lists; not those of the graphs inside the node."""
    for item in node.attribute:
        if item.type == AttributeProto.TENSOR:
            yield item.t
        elif item.type == AttributeProto.TENSORS:
            yield from item.tensors


def sparse_tensors(node: onnx.NodeProto) -> Iterator[onnx.SparseTensorProto]:
    """All sparse tensors that attributes hold, as `tensors`."""
    for item in node.attribute:
        if item.type == AttributeProto.SPARSE_TENSOR:
            yield item.sparse_tensor
        elif item.type == AttributeProto.SPARSE_TENSORS:
            yield from item.sparse_tensors


def padding(node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """How a convolution or a pool pads its input, auto_pad resolved: the begins of all axes, then their ends.

    As onnxruntime's kernels do: for the SAME size a pool takes no notice of its dilations, and cuts off pixels, which
    is a negative padding, where its windows leave some out.

    Args:
        sizes: of the input along the axes of the kernel; () where they are not known, and SAME cannot be resolved.
        kernel: the kernel's extent along each axis.
    """
    mode, none = text(node, "auto_pad"), (0,) * (2 * len(kernel))
    if mode not in ("SAME_UPPER", "SAME_LOWER") or not sizes:
        return none if mode == "VALID" else integers(node, "pads", none)
    ones = (1,) * len(kernel)
    strides, dilations = integers(node, "strides", ones), integers(node, "dilations", ones)
    is_pool = node.op_type.endswith("Pool")
    totals = [
        (-(-size // stride) - 1) * stride + (extent if is_pool else (extent - 1) * dilation + 1) - size
        for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    totals = totals if is_pool else [max(total, 0) for total in totals]
    begins = tuple(int((total if mode == "SAME_UPPER" else total + 1) / 2) for total in totals)
    return (*begins, *(total - begin for total, begin in zip(totals, begins, strict=True)))


def values(node: onnx.NodeProto) -> dict[str, object]:
    """All attributes by name, as onnx hands them out: strings as bytes, tensors and graphs as protobuf messages."""
    return {item.name: get_attribute_value(item) for item in node.attribute}


def plain_values(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """All attributes by name, as values that can be hashed; of tensors and graphs a hash of their bytes."""
    return {item.name: _plain(item) for item in node.attribute if item.type != AttributeProto.UNDEFINED}


def serialized(node: onnx.NodeProto) -> tuple[bytes, ...]:
    """All attributes as bytes, sorted by name: equal for nodes whose attributes are equal to the last bit."""
    return tuple(
        item.SerializeToString(deterministic=True) for item in sorted(node.attribute, key=lambda item: item.name)
    )


def completed(node: onnx.NodeProto, defaults: Iterable[AttributeProto]) -> tuple[AttributeProto, ...]:
    """All attributes of the node, and those of `defaults` that it does not have."""
    present = names(node)
    return (*node.attribute, *(item for item in defaults if item.name not in present))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a control-flow node."""
    for item in node.attribute:
        if item.type == AttributeProto.GRAPH:
            yield item.g
        elif item.type == AttributeProto.GRAPHS:
            yield from item.graphs


def has_subgraphs(node: onnx.NodeProto) -> bool:
    """Whether the node is one of control flow, with graphs inside."""
    return next(subgraphs(node), None) is not None


def assign(node: onnx.NodeProto, **changes: int | str | Sequence[int] | None) -> None:
    """Give attributes of the node new values, in place; None takes an attribute away."""
    renew(node, changes, [make_attribute(name, value) for name, value in changes.items() if value is not None])


def copied(message: Copied) -> Copied:
    """A copy of a node or of another message."""
    made: Copied = type(message)()
    made.CopyFrom(message)
    return made


def with_attributes(node: onnx.NodeProto, **changes: int | str | Sequence[int] | None) -> onnx.NodeProto:
    """A copy of the node with these attributes instead of its own of the same names, as `assign` gives them."""
    changed = copied(node)
    assign(changed, **changes)
    return changed


def renew(node: onnx.NodeProto, gone: Container[str], new: Iterable[AttributeProto]) -> None:
    """Take the attributes `gone` away from the node, in place, and give it `new` ones."""
    kept = [item for item in node.attribute if item.name not in gone]
    del node.attribute[:]
    node.attribute.extend([*kept, *new])


def _find(node: onnx.NodeProto, name: str, *kinds: int) -> AttributeProto | None:
    return next((item for item in node.attribute if item.name == name and item.type in kinds), None)


def _plain(item: AttributeProto) -> AttributeValue:
    value = get_attribute_value(item)
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, list) and all(isinstance(entry, int | float | bytes) for entry in value):
        return tuple(_decoded(entry) if isinstance(entry, bytes) else entry for entry in value)
    nameless = copied(item)
    nameless.doc_string = ""
    return f"sha256:{sha256(nameless.SerializeToString(deterministic=True)).hexdigest()[:16]}"


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "replace")
