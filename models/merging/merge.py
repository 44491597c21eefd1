"""Merges operators in an ONNX graph, and undoes such merges (thesis, section 3.2.2).

Operators that read one tensor become one operator and a Split, whose outputs have the names of the original results.
The model's metadata describes the original operators. Their constants are contained in the merged constants bit by
bit, and are cut out of those again when the merge is undone.
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


def merge_operators(graph: EditableGraph, operators: Sequence[Operator]) -> tuple[Merge, tuple[onnx.NodeProto, ...]]:
    """Replace the nodes of operators by those of one merged operator.

    Args:
        graph: is changed.
        operators: two or more that `merge_rule` allows to be merged.

    Returns:
        The record that undoes it, and the new nodes.

    Complexity: O(nodes + weights).

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
    _put(graph, gone, found.nodes, found.constants)
    return Merge(base, record), found.nodes


def unmerge(graph: EditableGraph) -> None:
    """Restore, bit for bit, the operators that `merge_operators` replaced, as the model's metadata describes them.

    The operators that the metadata describes are merged once more, and the result is compared with the graph. Where the
    two differ, because another tool edited the graph or wrote the metadata, the merged operator stays: the model
    computes the same with it.
    """
    for merge in from_metadata(graph.frame):
        _undo(graph, merge)


def _put(
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
    """`name`, with a number behind it where that is needed for no tensor to have this name or one that begins so."""
    begun = [f"{other}/" for other in taken]
    candidates = chain([name], (f"{name}{number}" for number in count(2)))

    def is_free(candidate: str) -> bool:
        return not any(other.startswith(f"{candidate}/") for other in begun)

    return next(filter(is_free, candidates))


def _undo(graph: EditableGraph, merge: Merge) -> None:
    """Restore the operators of one merge."""
    weight = f"{merge.base}/weight"
    readers = graph.consumers(weight)
    anchor = next((node for node in readers if node.input[1:2] == [weight]), None)
    nodes = [part.protos() for part in merge.parts]
    if anchor is None or not all(is_well_formed(node, graph.frame) for node in chain(*nodes)):
        return
    constants = ChainMap(graph.weights, _cut_back(merge, graph.weights))
    parts = [part for own in nodes if (part := chain_of(own, constants)) is not None]
    if len(parts) < len(nodes) or not _fit(parts, anchor):
        return
    found = stacked(parts, integers(anchor, "pads"), merge.base, graph.opset)
    if not _stands_in(graph, found) or not _names_are_free(graph, parts, found):
        return
    restored = [node for part in parts for node in part.nodes]
    read = dict.fromkeys(name for node in restored for name in node.input if name in constants)
    weights = {name: constants[name] for name in read if name not in graph.weights}
    _put(graph, [node.output[0] for node in found.nodes], restored, weights)


def _cut_back(merge: Merge, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The constants of the operators before the merge, as far as they can be cut out of the merged constants."""
    found: dict[str, np.ndarray] = {}
    begin = 0
    for part in merge.parts:
        for name, origin in part.constants.items():
            cut = _cut(weights[origin.source], origin, begin, part.width) if origin.source in weights else None
            if cut is not None:
                found[name] = cut
        begin += part.width
    return found


def _cut(array: np.ndarray, origin: Origin, begin: int, width: int) -> np.ndarray | None:
    """One operator's rows `begin` to `begin + width` of a merged constant, in their original shape.

    Of a kernel that was padded with zeros, the middle is taken; of a number that was repeated for every row, the first.
    None where the merged constant has not enough elements.
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


def _fit(parts: Sequence[Chain], anchor: onnx.NodeProto) -> bool:
    """Whether one operator can stand for the parts: their settings are equal, and their kernels centred in `anchor`'s.

    `anchor` is the merged convolution or product as it stands in the graph.
    """
    first = parts[0]
    alike = all(_settings(part) == _settings(first) for part in parts)
    if not alike or not first.is_convolution:
        return alike
    kernel, pads = integers(anchor, "kernel_shape"), integers(anchor, "pads")
    rank = first.weight.ndim - 2
    return len(kernel) == rank and len(pads) == 2 * rank and all(_is_centred(part, kernel, pads) for part in parts)


def _settings(part: Chain) -> object:
    """All that operators must have in common to be merged, as a value that can be compared."""
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
        return True  # the padding depends on the size of the input, which is not known before shape inference
    dilations = integers(part.anchor, "dilations", (1,) * len(own))
    before = integers(part.anchor, "pads", (0,) * (2 * len(own)))
    if len(dilations) != len(own) or len(before) != 2 * len(own):
        return False
    shift = [by * margin for by, margin in zip(dilations, margins(own, kernel), strict=True)]
    return list(pads) == [pad + more for pad, more in zip(before, shift * 2, strict=True)]


def _stands_in(graph: EditableGraph, found: Stacked) -> bool:
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
    """Whether restoring the parts gives no two tensors of the graph the same name."""
    merged = {name for node in found.nodes for name in node.output}
    written = [str(node.output[0]) for part in parts for node in part.nodes]
    read = {name for part in parts for node in part.nodes for name in node.input if name in part.weights}
    is_known = all(part.output in found.nodes[-1].output for part in parts)
    is_taken = any(graph.has(name) and name not in merged for name in written)
    is_computed = any(graph.has(name) and name not in graph.weights for name in read)
    return is_known and len(set(written)) == len(written) and not is_taken and not is_computed


def to_json(merges: Sequence[Merge]) -> str:
    """The text that the metadata has under `MERGED_KEY`."""
    return json.dumps([asdict(merge) for merge in merges], sort_keys=True)


def from_metadata(proto: onnx.ModelProto) -> list[Merge]:
    """The merges that a model's metadata describes; entries that are not in the form of `to_json` are left out."""
    entries = decoded(metadata_of(proto, MERGED_KEY) or "[]", list[msgspec.Raw]) or []
    return [merge for entry in entries if (merge := decoded(entry, Merge)) is not None]
