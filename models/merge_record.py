"""What is known of merged convolutions, and its form in a model's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import onnx

MERGED_KEY = "io.iosched.merged"
"""Model metadata that says how merged convolutions are undone."""

_ATTRIBUTES = {"auto_pad": str, "dilations": list, "group": int, "kernel_shape": list, "pads": list, "strides": list}


@dataclass(frozen=True)
class Part:
    """One convolution inside a merged one.

    Attributes:
        output: the operator's output tensor.
        conv: the convolution's own output; `output` where there is no activation.
        weight, bias: its constants by name; bias "" for none.
        kernel_shape: of the part alone.
        channels: its output channels.
        attributes: its attributes as they were written.
    """

    output: str
    conv: str
    weight: str
    bias: str
    kernel_shape: tuple[int, ...]
    channels: int
    attributes: Mapping[str, str | int | list[int]]


@dataclass(frozen=True)
class Merge:
    """A merged convolution: its output tensor, that of its activation (the same where there is none), its parts."""

    conv: str
    activated: str
    parts: tuple[Part, ...]


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
    if not isinstance(entry, dict) or not isinstance(entry.get("parts"), list):
        return None
    parts = [_part_of(part) for part in entry["parts"]]
    conv, activated = entry.get("conv"), entry.get("activated")
    if not isinstance(conv, str) or not isinstance(activated, str) or not parts:
        return None
    known = tuple(part for part in parts if part is not None)
    return Merge(conv, activated, known) if len(known) == len(parts) else None


def _part_of(entry: object) -> Part | None:
    if not isinstance(entry, dict):
        return None
    texts = [entry.get(key) for key in ("output", "conv", "weight", "bias")]
    kernel, channels, attributes = (entry.get(key) for key in ("kernel_shape", "channels", "attributes"))
    if not all(isinstance(text, str) for text in texts) or not all(texts[:3]):
        return None
    if not _is_sizes(kernel) or type(channels) is not int or channels < 1 or not isinstance(attributes, dict):
        return None
    if not all(_is_attribute(key, value) for key, value in attributes.items()):
        return None
    output, conv, weight, bias = (str(text) for text in texts)
    return Part(output, conv, weight, bias, tuple(kernel or ()), channels, attributes)


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 < item < 2**31 for item in value)


def _is_attribute(key: object, value: object) -> bool:
    kind = _ATTRIBUTES.get(key) if isinstance(key, str) else None
    if kind is None or type(value) is not kind:
        return False
    return not isinstance(value, list) or all(type(item) is int and 0 <= item < 2**31 for item in value)
