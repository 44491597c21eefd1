"""Hashes a model: equal for files that compute the same with the same operator names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import prod

import numpy as np
import onnx

from iosched.models.graph import ComputationGraph
from iosched.models.node_attributes import plain_values
from iosched.models.wiring import captures, is_standard, writes

_CHUNK_NBYTES = 2**22


def model_digest(proto: onnx.ModelProto, weights: Mapping[str, str], graph: ComputationGraph) -> str:
    """SHA-256 (hex) of a model's structure, attributes, weights, and the names that schedules use. O(nodes).

    A tensor's hash combines its node's type and attributes with the hashes of the node's inputs. So the names of nodes,
    weights and inner tensors, node order, metadata and comments do not count; those of inputs, outputs and operators
    do. `weights` has the `array_digest` of every weight, and `graph` the operators of `proto`.
    """
    opsets = opsets_of(proto)
    hashes = {spec.name: _hash("input", spec.name, spec.dtype, spec.shape) for spec in graph.inputs}
    hashes.update(weights)
    for node in proto.graph.node:
        identity = node_digest(node, opsets, hashes)
        hashes.update((name, _hash(identity, node.output[:].index(name))) for name in writes(node))
    operators = sorted((operator.name, hashes[operator.name]) for operator in graph.operators)
    inputs = [(spec.name, spec.dtype, spec.shape) for spec in graph.inputs]
    return _hash("model", inputs, operators, [(name, hashes[name]) for name in graph.outputs])


def node_digest(node: onnx.NodeProto, opsets: Mapping[str, int], hashes: Mapping[str, str]) -> str:
    """SHA-256 (hex) of what a node computes; `hashes` has those of all tensors that it reads."""
    domain = "ai.onnx" if is_standard(node) else node.domain
    read = [hashes[name] if name else "" for name in node.input]
    captured = [(name, hashes[name]) for name in captures(node)]
    attributes = sorted((key, repr(value)) for key, value in plain_values(node).items())
    return _hash(domain, node.op_type, since(node, opsets), attributes, read, captured)


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """The imported version of each domain; ONNX's own is "ai.onnx"."""
    return {item.domain or "ai.onnx": item.version for item in proto.opset_import}


def since(node: onnx.NodeProto, opsets: Mapping[str, int]) -> int:
    """The opset that introduced the present definition of the node's operator; 0 if unknown."""
    domain = "" if is_standard(node) else node.domain
    opset = opsets.get(domain or "ai.onnx", 0)
    if not onnx.defs.has(node.op_type, opset, domain):
        return 0
    return onnx.defs.get_schema(node.op_type, opset, domain).since_version


class WeightDigests(Mapping[str, str]):
    """`array_digest` of weights by name, computed on first access."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = array_digest(self._weights[name])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights


def _hash(*parts: object) -> str:
    return sha256(json.dumps(parts).encode()).hexdigest()


def array_digest(array: np.ndarray) -> str:
    """SHA-256 (hex) of type, shape and elements; streamed, and O(1) memory if one element fills the array."""
    digest = sha256(json.dumps([array.dtype.name, list(array.shape)]).encode())
    if array.dtype == object:
        digest.update(json.dumps([_text(item) for item in array.reshape(-1)]).encode())
        return digest.hexdigest()
    for chunk in _chunks(array):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(array: np.ndarray) -> Iterator[memoryview | bytes]:
    """The array's bytes in C order, without copying the whole."""
    if array.size and not any(array.strides):
        yield from _repeated(array.reshape(-1)[:1].tobytes(), prod(array.shape))
    elif array.nbytes <= _CHUNK_NBYTES or array.ndim == 0:
        yield array.tobytes()
    elif array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        yield from (flat[start : start + _CHUNK_NBYTES].data for start in range(0, flat.size, _CHUNK_NBYTES))
    else:
        for part in array:
            yield from _chunks(part)


def _repeated(item: bytes, count: int) -> Iterator[bytes]:
    per_chunk = max(_CHUNK_NBYTES // len(item), 1)
    chunk = item * min(per_chunk, count)
    for _ in range(count // per_chunk):
        yield chunk
    yield item * (count % per_chunk)


def _text(item: object) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
