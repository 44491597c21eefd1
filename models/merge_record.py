"""What an optimized model's metadata says about merged operators, so that the merge can be undone when it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from iosched.models.stacking import Origin

MERGED_KEY = "io.iosched.merged"
"""The key of the model metadata that says how to undo the merges in the model."""


@dataclass(frozen=True)
class UnmergedOperator:
    """One of the operators that were merged, as it was before the merge.

    Attributes:
        nodes: the operator's nodes in topological order, each in protobuf's JSON form.
        width: how many output channels (of a convolution) or columns (of a product) the operator computes.
        constants: for each constant that the nodes read, by name, where its values lie in the merged constants.
    """

    nodes: tuple[dict[str, Any], ...]
    width: int
    constants: Mapping[str, Origin]

    @classmethod
    def of(cls, nodes: Sequence[onnx.NodeProto], width: int, constants: Mapping[str, Origin]) -> UnmergedOperator:
        """The record of an operator with these nodes; see the attributes."""
        return cls(tuple(MessageToDict(node) for node in nodes), width, constants)

    def protos(self) -> list[onnx.NodeProto] | None:
        """The nodes as messages; None where the metadata describes no valid nodes."""
        try:
            return [ParseDict(node, onnx.NodeProto()) for node in self.nodes]
        except (ParseError, ValueError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class Merge:
    """A merged operator.

    Attributes:
        base: the tensor that the Split reads; the names of all other new tensors and constants begin with it.
        parts: the operators that were merged, in the order of their results.
    """

    base: str
    parts: tuple[UnmergedOperator, ...]


def to_json(merges: Sequence[Merge]) -> str:
    """The text that the metadata has under `MERGED_KEY`."""
    return json.dumps([asdict(merge) for merge in merges], sort_keys=True)


def from_metadata(proto: onnx.ModelProto) -> list[Merge]:
    """The merges that a model's metadata describes; entries that are not in the form of `to_json` are left out."""
    text = next((item.value for item in proto.metadata_props if item.key == MERGED_KEY), "[]")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = [_merge_of(entry) for entry in entries] if isinstance(entries, list) else []
    return [merge for merge in found if merge is not None]


def _merge_of(entry: object) -> Merge | None:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("parts"), list)
        or not isinstance(entry.get("base"), str)
    ):
        return None
    parts = [_operator_of(part) for part in entry["parts"]]
    known = tuple(part for part in parts if part is not None)
    return Merge(entry["base"], known) if 1 < len(known) == len(parts) and entry["base"] else None


def _operator_of(entry: object) -> UnmergedOperator | None:
    if not isinstance(entry, dict):
        return None
    found: list[Any] = [entry.get(key) for key in ("nodes", "width", "constants")]
    nodes, width, constants = found
    if not isinstance(nodes, list) or not nodes or not all(isinstance(node, dict) for node in nodes):
        return None
    if not _is_size(width) or not isinstance(constants, dict):
        return None
    origins = {name: _origin_of(value) for name, value in constants.items()}
    known = {name: origin for name, origin in origins.items() if origin is not None}
    return UnmergedOperator(tuple(nodes), width, known) if len(known) == len(origins) else None


def _origin_of(entry: object) -> Origin | None:
    if not isinstance(entry, dict):
        return None
    found: list[Any] = [entry.get(key) for key in ("source", "axis", "shape")]
    source, axis, shape = found
    if not isinstance(source, str) or axis not in (None, 0, 1) or not isinstance(shape, list):
        return None
    return Origin(source, axis, tuple(shape)) if all(_is_size(size) for size in shape) else None


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31
