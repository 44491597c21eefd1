"""Merges operators in an ONNX graph, and undoes such merges (thesis, section 3.2.2).

Operators of one input become one operator and a Split, whose outputs keep their names. The model's metadata describes
the original operators; their constants are bit-equal parts of the merged ones, from which they are restored.
"""

from __future__ import annotations

import json
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
import onnx
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from msgspec import Meta

from iosched.models.checks import is_well_formed
from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import Operator
from iosched.models.merging.rule import merged_size, refusal
from iosched.models.merging.stacking import Chain, Origin, Size, Stacked, chain_of, margins, stacked
from iosched.models.metadata import decoded, metadata_of
from iosched.models.node_attributes import integer, integers, serialized, text, values
from iosched.models.prepared import prepare

MERGED_KEY = "io.iosched.merged"
"""The metadata key for undoing merges."""


@dataclass(frozen=True)
class UnmergedOperator:
    """An operator as it was before the merge.

    Attributes:
        nodes: in topological order, each in protobuf's JSON form.
        width: the number of output channels (of a convolution) or columns (of a product).
        constants: where the values of each constant are in the merged constants, by name.
    """

    nodes: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1)]
    width: Size
    constants: Mapping[str, Origin]

    @classmethod
    def of(cls, nodes: Sequence[onnx.NodeProto], width: int, constants: Mapping[str, Origin]) -> UnmergedOperator:
        """The record of an operator with these nodes."""
        return cls(tuple(MessageToDict(node) for node in nodes), width, constants)

    def protos(self) -> list[onnx.NodeProto]:
        """The nodes as messages; none if the metadata is invalid."""
        try:
            return [ParseDict(node, onnx.NodeProto()) for node in self.nodes]
        except (ParseError, ValueError, TypeError, AttributeError):
            return []


@dataclass(frozen=True)
class Merge:
    """A merged operator.

    Attributes:
        base: the tensor that the Split reads, and the prefix of all other new names.
        parts: the original operators, in the order of their results.
    """

    base: Annotated[str, Meta(min_length=1)]
    parts: Annotated[tuple[UnmergedOperator, ...], Meta(min_length=2)]


prepare(Merge)


def merge_operators(graph: EditableGraph, operators: Sequence[Operator]) -> tuple[Merge, tuple[onnx.NodeProto, ...]]:
    """Replace the nodes of operators, which the merge rule allows, by those of one. O(nodes + weights).

    Returns the record for undoing the merge, and the new nodes.

    Raises:
        ValueError: merging would not be exact, or is not possible.
    """
    if reason := refusal(operators):
        raise ValueError(reason)
    parts = [_chain(operator, graph) for operator in operators]
    pads = merged_size(operators)[1] if parts[0].is_convolution else ()
    base = _fresh(f"{parts[0].output}/merged", graph.names)
    found = stacked(parts, pads, base, graph.opset)
    pairs = zip(parts, found.origins, strict=True)
    record = tuple(UnmergedOperator.of(part.nodes, part.width, origins) for part, origins in pairs)
    gone = [node.output[0] for part in parts for node in part.nodes]
    _replace(graph, gone, found.nodes, found.constants)
    return Merge(base, record), found.nodes


def unmerge(graph: EditableGraph) -> None:
    """Restore, bit for bit, the operators that `merge_operators` replaced, from the model's metadata.

    The described operators are merged again for comparison. If the result differs from the graph, because another tool
    changed graph or metadata, the merged operator stays; the model computes the same with it.
    """
    for merge in from_metadata(graph.frame):
        _undo(graph, merge)


def _replace(
    graph: EditableGraph, gone: Sequence[str], nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray]
) -> None:
    """Replace nodes, and the weights that they alone read."""
    read = {name for each in gone for name in graph.node(each).input}
    graph.replace(gone, *nodes)
    graph.weights.update(weights)
    for name in read:
        if not graph.uses(name):
            graph.weights.pop(name, None)


def _chain(operator: Operator, graph: EditableGraph) -> Chain:
    nodes = [node for name in operator.nodes if (node := graph.producer(name)) is not None]
    found = chain_of(nodes, graph.weights) if len(nodes) == len(operator.nodes) else None
    if found is None:
        raise ValueError(f"operator {operator.name!r} changed since the graph was loaded")
    return found


def _fresh(name: str, taken: Iterable[str]) -> str:
    """`name`, numbered so that no tensor has this name or one below it."""
    begun = [f"{other}/" for other in taken]
    candidates = chain([name], (f"{name}{number}" for number in count(2)))

    def is_free(candidate: str) -> bool:
        return not any(other.startswith(f"{candidate}/") for other in begun)

    return next(filter(is_free, candidates))


def _undo(graph: EditableGraph, merge: Merge) -> None:
    weight = f"{merge.base}/weight"
    readers = graph.consumers(weight)
    anchor = next((node for node in readers if node.input[1:2] == [weight]), None)
    nodes = [part.protos() for part in merge.parts]
    if anchor is None or not all(is_well_formed(node, graph.frame) for node in chain(*nodes)):
        return
    constants = ChainMap(graph.weights, _restored_constants(merge, graph.weights))
    parts = [part for own in nodes if (part := chain_of(own, constants)) is not None]
    if len(parts) < len(nodes) or not _can_merge(parts, anchor):
        return
    found = stacked(parts, integers(anchor, "pads"), merge.base, graph.opset)
    if not _is_unchanged(graph, found) or not _names_are_free(graph, parts, found):
        return
    restored = [node for part in parts for node in part.nodes]
    read = dict.fromkeys(name for node in restored for name in node.input if name in constants)
    weights = {name: constants[name] for name in read if name not in graph.weights}
    _replace(graph, [node.output[0] for node in found.nodes], restored, weights)


def _restored_constants(merge: Merge, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    begin = 0
    for part in merge.parts:
        for name, origin in part.constants.items():
            cut = (
                _restored_constant(weights[origin.source], origin, begin, part.width)
                if origin.source in weights
                else None
            )
            if cut is not None:
                found[name] = cut
        begin += part.width
    return found


def _restored_constant(array: np.ndarray, origin: Origin, begin: int, width: int) -> np.ndarray | None:
    """An operator's part of a merged constant, in its original shape; None if there are too few elements.

    A zero-padded kernel gives its middle, a repeated number its first element.
    """
    shape = origin.shape
    if origin.axis is not None and array.ndim > origin.axis:
        array = array[(slice(None),) * origin.axis + (slice(begin, begin + width),)]
    if prod(shape) == 1:
        array = array.reshape(-1)[:1]
    elif array.ndim == len(shape) and all(own <= whole for own, whole in zip(shape, array.shape, strict=True)):
        around = margins(shape, array.shape)
        array = array[tuple(slice(skip, skip + size) for skip, size in zip(around, shape, strict=True))]
    if array.size != prod(shape):
        return None
    own = np.ascontiguousarray(array.reshape(shape)).reshape(shape)
    own.flags.writeable = False
    return own


def _can_merge(parts: Sequence[Chain], anchor: onnx.NodeProto) -> bool:
    first = parts[0]
    alike = all(_merge_settings(part) == _merge_settings(first) for part in parts)
    if not alike or not first.is_convolution:
        return alike
    kernel, pads = integers(anchor, "kernel_shape"), integers(anchor, "pads")
    rank = first.weight.ndim - 2
    return len(kernel) == rank and len(pads) == 2 * rank and all(_is_centred(part, kernel, pads) for part in parts)


def _merge_settings(part: Chain) -> object:
    anchor, ones = part.anchor, (1,) * (part.weight.ndim - 2)
    own: object = values(anchor)
    if part.is_convolution:
        own = integer(anchor, "group", 1), integers(anchor, "strides", ones), integers(anchor, "dilations", ones)
    activation = [(node.op_type, serialized(node)) for node in part.activation]
    bounds = [_identity(part.weights[name]) for node in part.activation for name in node.input if name in part.weights]
    shape = part.weight.shape[1] if part.axis == 0 else part.weight.shape[0]
    kind = (anchor.op_type, part.relu is None, part.weight.dtype.name, part.weight.ndim, shape)
    return part.source, kind, own, activation, bounds


def _is_centred(part: Chain, kernel: Sequence[int], pads: Sequence[int]) -> bool:
    own = part.weight.shape[2:]
    if integer(part.anchor, "group", 1) != 1 or integers(part.anchor, "kernel_shape", own) != own:
        return False
    if any(large < small or (large - small) % 2 for large, small in zip(kernel, own, strict=True)):
        return False
    if text(part.anchor, "auto_pad").startswith("SAME"):
        return True  # the padding depends on the input's size, unknown before shape inference
    dilations = integers(part.anchor, "dilations", (1,) * len(own))
    before = integers(part.anchor, "pads", (0,) * (2 * len(own)))
    if len(dilations) != len(own) or len(before) != 2 * len(own):
        return False
    shift = [by * margin for by, margin in zip(dilations, margins(own, kernel), strict=True)]
    return list(pads) == [pad + more for pad, more in zip(before, shift * 2, strict=True)]


def _is_unchanged(graph: EditableGraph, found: Stacked) -> bool:
    """Whether the graph has exactly the nodes and constants of `found`, and nothing else reads the tensors inside."""
    present = [graph.producer(node.output[0]) for node in found.nodes]
    written = [None if node is None else _written(node) for node in present]
    if written != [_written(node) for node in found.nodes]:
        return False
    inside = Counter(name for node in found.nodes for name in node.input)
    if any(graph.uses(node.output[0]) != inside[node.output[0]] for node in found.nodes[:-1]):
        return False
    given = {name: graph.weights[name] for name in found.constants if name in graph.weights}
    return _identities(given) == _identities(found.constants)


def _identities(arrays: Mapping[str, np.ndarray]) -> object:
    return {name: _identity(array) for name, array in arrays.items()}


def _written(node: onnx.NodeProto) -> object:
    return node.op_type, node.domain, list(node.input), list(node.output), serialized(node)


def _identity(array: np.ndarray) -> object:
    return array.dtype.name, array.shape, array.tobytes()


def _names_are_free(graph: EditableGraph, parts: Sequence[Chain], found: Stacked) -> bool:
    merged = {name for node in found.nodes for name in node.output}
    written = [str(node.output[0]) for part in parts for node in part.nodes]
    read = {name for part in parts for node in part.nodes for name in node.input if name in part.weights}
    is_known = all(part.output in found.nodes[-1].output for part in parts)
    is_taken = any(graph.has(name) and name not in merged for name in written)
    is_computed = any(graph.has(name) and name not in graph.weights for name in read)
    return is_known and len(set(written)) == len(written) and not is_taken and not is_computed


def to_json(merges: Sequence[Merge]) -> str:
    """The metadata under `MERGED_KEY`."""
    return json.dumps([asdict(merge) for merge in merges], sort_keys=True)


def from_metadata(proto: onnx.ModelProto) -> list[Merge]:
    """The merges in a model's metadata; invalid entries are ignored."""
    entries = decoded(metadata_of(proto, MERGED_KEY) or "[]", list[msgspec.Raw]) or []
    return [merge for entry in entries if (merge := decoded(entry, Merge)) is not None]
