"""Merges operators in an ONNX graph, and undoes such merges (thesis, section 3.2.2).

Operators that read one tensor become one operator and a Split, whose outputs have the names of the original results.
The model's metadata describes the original operators. Their constants are contained in the merged constants bit by
bit, and are cut out of those again when the merge is undone.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from iosched.models.chain import Chain, chain_of
from iosched.models.checks import is_well_formed
from iosched.models.graph import Operator
from iosched.models.merge_record import Merge, UnmergedOperator, from_metadata
from iosched.models.merge_rule import merged_size, refusal
from iosched.models.node_attributes import integer, integers, serialized, text, values
from iosched.models.stacking import Origin, Stacked, margins, stacked
from iosched.models.wiring import reads, replace_nodes, standard_opset, use_counts, writes


def merge_operators(
    proto: onnx.ModelProto, weights: dict[str, np.ndarray], merges: Sequence[Sequence[Operator]]
) -> list[tuple[Merge, list[onnx.NodeProto]]]:
    """For each of `merges`, replace the nodes of its operators in `proto` by those of one merged operator.

    Args:
        proto: its nodes are changed in place; its initializers are left to the caller.
        weights: every initializer by name. The merged ones are added, and those that no node reads any more removed.
        merges: each of two or more operators that `merge_rule` allows to be merged; none in two of them.

    Returns:
        For each the record that undoes it, and the new nodes.

    Complexity: O(nodes + edges), and for each merge O(weights).

    Raises:
        ValueError: merging would not be exact, or is not possible; `proto` was not changed.
    """
    draft = _Draft.of(proto.graph)
    found = [_merge(draft, weights, operators, standard_opset(proto)) for operators in merges]
    if found:
        draft.write(proto.graph)
    return found


def unmerge(proto: onnx.ModelProto, weights: dict[str, np.ndarray]) -> None:
    """Restore, bit for bit, the operators that `merge_operators` replaced, as the model's metadata describes them.

    The nodes of `proto` and `weights` are changed in place; the initializers of `proto` are left to the caller. The
    operators that the metadata describes are merged once more, and the result is compared with the graph. Where the two
    differ, because another tool edited the graph or wrote the metadata, the merged operator stays: the model computes
    the same with it.
    """
    merges = from_metadata(proto)
    if not merges:
        return
    draft = _Draft.of(proto.graph)
    anchors: dict[str, onnx.NodeProto] = {}
    for node in proto.graph.node:
        for weight in node.input[1:2]:
            anchors.setdefault(weight, node)
    undone = [_undo(proto, draft, weights, merge, anchors.get(f"{merge.base}/weight")) for merge in merges]
    if any(undone):
        draft.write(proto.graph)


@dataclass(eq=False)
class _Draft:
    """The nodes of a graph while some are replaced, without a pass over all of them for each."""

    slots: list[list[onnx.NodeProto]]  # for each node of the graph what is now in its place
    slot_of: dict[str, int]  # by the first outputs of nodes
    producer: dict[str, onnx.NodeProto]
    uses: Counter[str]
    inputs: frozenset[str]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> _Draft:
        return cls(
            [[node] for node in graph.node],
            {node.output[0]: index for index, node in enumerate(graph.node) if node.output},
            {name: node for node in graph.node for name in writes(node)},
            use_counts(graph),
            frozenset(item.name for item in graph.input),
        )

    def replace(self, gone: set[str], new: Sequence[onnx.NodeProto]) -> None:
        """Remove the nodes that write the tensors `gone`, and put the nodes `new` where the first of those stood."""
        places = sorted({self.slot_of[name] for name in gone})
        first = self.slots[places[0]]
        at = next(index for index, node in enumerate(first) if node.output[0] in gone)
        for place in places:
            for node in [node for node in self.slots[place] if node.output[0] in gone]:
                self.slots[place].remove(node)
                self.uses.subtract(reads(node))
                for name in writes(node):
                    del self.producer[name]
        first[at:at] = new
        for node in new:
            self.uses.update(reads(node))
            self.slot_of[node.output[0]] = places[0]
            self.producer.update(dict.fromkeys(writes(node), node))

    def drop_unread(self, weights: dict[str, np.ndarray], names: set[str]) -> None:
        """Remove those of the weights `names` that no node reads any more."""
        for name in names:
            if not self.uses[name]:
                weights.pop(name, None)

    def write(self, graph: onnx.GraphProto) -> None:
        """Make the nodes those of `graph`, whose types of tensors that are gone are dropped."""
        replace_nodes(graph, [node for slot in self.slots for node in slot])
        infos = [info for info in graph.value_info if info.name in self.producer]
        del graph.value_info[:]
        graph.value_info.extend(infos)


def _merge(
    draft: _Draft, weights: dict[str, np.ndarray], operators: Sequence[Operator], opset: int
) -> tuple[Merge, list[onnx.NodeProto]]:
    if reason := refusal(operators):
        raise ValueError(reason)
    parts = [_chain(operator, draft.producer, weights) for operator in operators]
    pads = merged_size(operators)[1] if parts[0].is_convolution else ()
    base = _fresh(f"{parts[0].output}/merged", (draft.producer, weights))
    found = stacked(parts, pads, base, opset)
    record = tuple(
        UnmergedOperator.of(part.nodes, part.width, origins) for part, origins in zip(parts, found.origins, strict=True)
    )
    draft.replace({node.output[0] for part in parts for node in part.nodes}, found.nodes)
    weights.update(found.constants)
    draft.drop_unread(weights, {name for origins in found.origins for name in origins})
    return Merge(base, record), list(found.nodes)


def _chain(operator: Operator, producer: Mapping[str, onnx.NodeProto], weights: Mapping[str, np.ndarray]) -> Chain:
    nodes = [producer[name] for name in operator.nodes if name in producer]
    found = chain_of(nodes, weights) if len(nodes) == len(operator.nodes) else None
    if found is None:
        raise ValueError(f"{operator.name!r} is not in the graph as it was loaded")
    return found


def _fresh(name: str, taken: Sequence[Iterable[str]]) -> str:
    """`name`, with a number behind it where that is needed for no tensor to have this name or one that begins so."""
    begin = [other for names in taken for other in names if other.startswith(name)]
    candidate, count = name, 1
    while any(other == candidate or other.startswith(f"{candidate}/") for other in begin):
        count += 1
        candidate = f"{name}{count}"
    return candidate


def _undo(
    proto: onnx.ModelProto,
    draft: _Draft,
    weights: dict[str, np.ndarray],
    merge: Merge,
    anchor: onnx.NodeProto | None,
) -> bool:
    """Whether the operators of one merge were restored; `anchor` is the node that reads its weights."""
    nodes = [part.protos() for part in merge.parts]
    own = [found for found in nodes if found and all(is_well_formed(node, proto) for node in found)]
    if anchor is None or len(own) < len(nodes):
        return False
    constants = ChainMap(weights, _cut_back(merge, weights))
    parts = [chain for found in own if (chain := chain_of(found, constants)) is not None]
    if len(parts) < len(own) or not _fit(parts, anchor):
        return False
    found = stacked(parts, integers(anchor, "pads"), merge.base, standard_opset(proto))
    if not _stands_in(draft, weights, found) or not _names_are_free(draft, parts, found, weights):
        return False
    draft.replace({node.output[0] for node in found.nodes}, [node for part in parts for node in part.nodes])
    read = {name for part in parts for node in part.nodes for name in node.input}
    weights.update({name: constants[name] for name in read if name in constants and name not in weights})
    draft.drop_unread(weights, set(found.constants))
    return True


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


def _stands_in(draft: _Draft, weights: Mapping[str, np.ndarray], found: Stacked) -> bool:
    """Whether the graph has exactly the nodes and constants of `found`, and nothing else reads the tensors inside."""
    for node in found.nodes:
        present = draft.producer.get(node.output[0])
        if present is None or _written(present) != _written(node):
            return False
    inner = [node.output[0] for node in found.nodes[:-1]]
    inside = use_counts(onnx.GraphProto(node=found.nodes))
    if any(draft.uses[name] != inside[name] for name in inner):
        return False
    return all(
        name in weights and _identity(weights[name]) == _identity(array) for name, array in found.constants.items()
    )


def _written(node: onnx.NodeProto) -> object:
    return node.op_type, node.domain, list(node.input), list(node.output), serialized(node)


def _identity(array: np.ndarray) -> object:
    return array.dtype.name, array.shape, array.tobytes()


def _names_are_free(draft: _Draft, parts: Sequence[Chain], found: Stacked, weights: Mapping[str, np.ndarray]) -> bool:
    """Whether restoring the parts gives no two tensors of the graph the same name."""
    merged = {name for node in found.nodes for name in node.output}
    written = [str(node.output[0]) for part in parts for node in part.nodes]
    read = {name for part in parts for node in part.nodes for name in node.input if name in part.weights}
    is_known = all(part.output in found.nodes[-1].output for part in parts)
    computed = {name for name in (*written, *read) if name in draft.producer or name in draft.inputs}
    is_taken = any((name in computed and name not in merged) or name in weights for name in written)
    return is_known and len(set(written)) == len(written) and not is_taken and computed.isdisjoint(read)
