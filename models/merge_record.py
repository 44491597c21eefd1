"""What an optimized model's metadata says about merged operators, so that the merge can be undone when it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec
import onnx
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from msgspec import Meta

from iosched.models.metadata import decoded, metadata_of
from iosched.models.prepared import prepare
from iosched.models.stacking import Origin, Size

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

    nodes: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1)]
    width: Size
    constants: Mapping[str, Origin]

    @classmethod
    def of(cls, nodes: Sequence[onnx.NodeProto], width: int, constants: Mapping[str, Origin]) -> UnmergedOperator:
        """The record of an operator with these nodes; see the attributes."""
        return cls(tuple(MessageToDict(node) for node in nodes), width, constants)

    def protos(self) -> list[onnx.NodeProto]:
        """The nodes as messages; none where the metadata describes no valid nodes."""
        try:
            return [ParseDict(node, onnx.NodeProto()) for node in self.nodes]
        except (ParseError, ValueError, TypeError, AttributeError):
            return []


@dataclass(frozen=True)
class Merge:
    """A merged operator.

    Attributes:
        base: the tensor that the Split reads; the names of all other new tensors and constants begin with it.
        parts: the operators that were merged, in the order of their results.
    """

    base: Annotated[str, Meta(min_length=1)]
    parts: Annotated[tuple[UnmergedOperator, ...], Meta(min_length=2)]


prepare(Merge)


def to_json(merges: Sequence[Merge]) -> str:
    """The text that the metadata has under `MERGED_KEY`."""
    return json.dumps([asdict(merge) for merge in merges], sort_keys=True)


def from_metadata(proto: onnx.ModelProto) -> list[Merge]:
    """The merges that a model's metadata describes; entries that are not in the form of `to_json` are left out."""
    entries = decoded(metadata_of(proto, MERGED_KEY) or "[]", list[msgspec.Raw]) or []
    return [merge for entry in entries if (merge := decoded(entry, Merge)) is not None]
