"""Attributes of ONNX nodes as Python values; no other module accesses `NodeProto.attribute`.

Readers return the caller's default if the attribute is missing or has another type.
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
    """The names of the node's attributes."""
    return frozenset(item.name for item in node.attribute)


def integer(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    """An integer attribute (also flags)."""
    found = _find(node, name, AttributeProto.INT)
    return default if found is None else found.i


def integers(node: onnx.NodeProto, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """An attribute with a list of integers; the default also for an empty list."""
    found = _find(node, name, AttributeProto.INTS)
    return tuple(default if found is None else found.ints or default)


def number(node: onnx.NodeProto, name: str, default: float = 0.0) -> float:
    """A float or integer attribute as a float."""
    found = _find(node, name, AttributeProto.FLOAT, AttributeProto.INT)
    if found is None:
        return default
    return found.f if found.type == AttributeProto.FLOAT else float(found.i)


def numbers(node: onnx.NodeProto, name: str) -> tuple[float, ...]:
    """An attribute with a list of floats; () if missing."""
    found = _find(node, name, AttributeProto.FLOATS)
    return () if found is None else tuple(found.floats)


def text(node: onnx.NodeProto, name: str, default: str = "") -> str:
    """A string attribute."""
    found = _find(node, name, AttributeProto.STRING)
    return default if found is None else _decoded(found.s)


def tensor(node: onnx.NodeProto, name: str) -> onnx.TensorProto | None:
    """A tensor attribute; None if missing."""
    found = _find(node, name, AttributeProto.TENSOR)
    return None if found is None else found.t


def tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """All tensors in attributes, except those in subgraphs."""
    for item in node.attribute:
        if item.type == AttributeProto.TENSOR:
            yield item.t
        elif item.type == AttributeProto.TENSORS:
            yield from item.tensors


def sparse_tensors(node: onnx.NodeProto) -> Iterator[onnx.SparseTensorProto]:
    """All sparse tensors in attributes, except those in subgraphs."""
    for item in node.attribute:
        if item.type == AttributeProto.SPARSE_TENSOR:
            yield item.sparse_tensor
        elif item.type == AttributeProto.SPARSE_TENSORS:
            yield from item.sparse_tensors


def padding(node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """The padding of a convolution or pool with auto_pad resolved: begins of all axes, then ends.

    As in onnxruntime's kernels, a SAME pool ignores dilations, and has negative padding if its windows skip pixels.

    Args:
        sizes: of the input along the kernel's axes; () if unknown, and SAME cannot be resolved.
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
    """All attributes by name as onnx returns them: strings as bytes, tensors and graphs as messages."""
    return {item.name: get_attribute_value(item) for item in node.attribute}


def plain_values(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """All attributes by name as hashable values; tensors and graphs as a hash of their bytes."""
    return {item.name: _plain(item) for item in node.attribute if item.type != AttributeProto.UNDEFINED}


def serialized(node: onnx.NodeProto) -> tuple[bytes, ...]:
    """All attributes as bytes, sorted by name: equal if the attributes are bit-equal."""
    return tuple(
        item.SerializeToString(deterministic=True) for item in sorted(node.attribute, key=lambda item: item.name)
    )


def completed(node: onnx.NodeProto, defaults: Iterable[AttributeProto]) -> tuple[AttributeProto, ...]:
    """The node's attributes, and the other ones of `defaults`."""
    present = names(node)
    return (*node.attribute, *(item for item in defaults if item.name not in present))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a control-flow node."""
    for item in node.attribute:
        if item.type == AttributeProto.GRAPH:
            yield item.g
        elif item.type == AttributeProto.GRAPHS:
            yield from item.graphs


def has_subgraphs(node: onnx.NodeProto) -> bool:
    """Whether the node has subgraphs."""
    return next(subgraphs(node), None) is not None


def assign(node: onnx.NodeProto, **changes: int | str | Sequence[int] | None) -> None:
    """Set attributes in place; None removes one."""
    renew(node, changes, [make_attribute(name, value) for name, value in changes.items() if value is not None])


def copied(message: Copied) -> Copied:
    """A copy of a message."""
    made: Copied = type(message)()
    made.CopyFrom(message)
    return made


def with_attributes(node: onnx.NodeProto, **changes: int | str | Sequence[int] | None) -> onnx.NodeProto:
    """A copy of the node with these attributes set, as by `assign`."""
    changed = copied(node)
    assign(changed, **changes)
    return changed


def renew(node: onnx.NodeProto, gone: Container[str], new: Iterable[AttributeProto]) -> None:
    """Remove the attributes `gone` in place, and add `new` ones."""
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
