"""What a model is asked about itself, in onnxruntime's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TypeProto

from iosched.models.shapes.inference import type_text

_NO_VERSION = 2**63 - 1  # what onnxruntime says where the file says nothing


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: its name.
        shape: for each dimension a number, the name of one that is free, or None; empty for what is no tensor.
        type: onnxruntime's text, "tensor(float)" or "seq(map(int64,tensor(float)))".
    """

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    """What the model's file says about itself, by onnxruntime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def node_arg(value: onnx.ValueInfoProto) -> NodeArg:
    """An input or output as the graph declares it."""
    return NodeArg(value.name, _shape(value.type), type_text(value.type, _element))


def metadata_of(proto: onnx.ModelProto) -> ModelMetadata:
    """The metadata of a model's file."""
    return ModelMetadata(
        proto.producer_name,
        proto.graph.name,
        proto.domain,
        proto.doc_string,
        proto.graph.doc_string,
        proto.model_version if proto.HasField("model_version") else _NO_VERSION,
        {item.key: item.value for item in proto.metadata_props},
    )


def _shape(kind: TypeProto) -> list[int | str | None]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.tensor_type.shape.dim]


def _element(number: int) -> str:
    return str(onnx.TensorProto.DataType.Name(number)).lower()
