"""What is known of merged operators, and its form in a model's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from iosched.models.stacking import Origin

MERGED_KEY = "io.iosched.merged"
"""Model metadata that says how merged operators are undone."""


@dataclass(frozen=True)
class Part:
    """One operator inside a merged one.

    Attributes:
        nodes: its nodes as they were, in order, in protobuf's JSON.
        width: its output channels, or columns.
        constants: where those of its constants lie that were cut, by name.
    """

    nodes: tuple[dict[str, Any], ...]
    width: int
    constants: Mapping[str, Origin]

    def protos(self) -> list[onnx.NodeProto] | None:
        """The nodes; None where they are none."""
        try:
            return [ParseDict(node, onnx.NodeProto()) for node in self.nodes]
        except (ParseError, ValueError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class Merge:
    """A merged operator: `base` names its result before the Split, and begins the names of all that belongs to it."""

    base: str
    parts: tuple[Part, ...]


def part_of(nodes: Sequence[onnx.NodeProto], width: int, constants: Mapping[str, Origin]) -> Part:
    """What to remember of a part."""
    return Part(tuple(MessageToDict(node) for node in nodes), width, constants)


def to_json(merges: Sequence[Merge]) -> str:
    """The value of `MERGED_KEY`."""
    return json.dumps([asdict(merge) for merge in merges], sort_keys=True)


def from_metadata(proto: onnx.ModelProto) -> list[Merge]:
    """The merges that the metadata tells of; what is not in our form is left out."""
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
    parts = [_part_of(part) for part in entry["parts"]]
    known = tuple(part for part in parts if part is not None)
    return Merge(entry["base"], known) if 1 < len(known) == len(parts) and entry["base"] else None


def _part_of(entry: object) -> Part | None:
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
    return Part(tuple(nodes), width, known) if len(known) == len(origins) else None


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
