"""One batch normalization for each chain of nodes that scale and shift every channel by constants.

Frameworks write a normalization as a product and a sum. onnxruntime takes them into a convolution before them, but
where there is none, as behind a Concat, it leaves the blocked layout for the sum. A batch normalization stays in it, as
a depthwise convolution with the activation that follows.

Where such a chain scales images with channels last, a Transpose behind it is put before it: to repeat three numbers
over and over is slow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.affine import Affine, affine_of
from iosched.models.node_attributes import integers
from iosched.models.wiring import is_standard, producers, standard_opset, use_counts, writes
from iosched.runtime.cpu.working import WorkingDraft, WorkingGraph

_CHANNELS_FIRST = (0, 3, 1, 2)
_OLDEST_OPSET = 9  # older batch normalizations have attributes that say how to run them


def join_affine(graph: WorkingGraph) -> WorkingGraph:
    """The graph with one node for each such chain; O(nodes + edges + weights of the chains)."""
    if standard_opset(graph.proto) < _OLDEST_OPSET:
        return graph
    return _joined(_with_transposes_first(graph))


def _with_transposes_first(graph: WorkingGraph) -> WorkingGraph:
    proto, draft = graph.proto.graph, WorkingDraft(graph)
    made_by, uses = producers(proto.node), use_counts(proto)
    for node in proto.node:
        if not is_standard(node) or node.op_type != "Transpose" or integers(node, "perm") != _CHANNELS_FIRST:
            continue
        chain: list[onnx.NodeProto] = []
        source = node.input[0]
        while source in made_by and uses[source] == 1 and _scales_last_axis(graph, proto.node[made_by[source]]):
            chain.append(proto.node[made_by[source]])
            source = _image(graph, chain[-1])
        if chain:
            _put_first(draft, node, chain[::-1])
    return draft.finished()


def _image(graph: WorkingGraph, node: onnx.NodeProto) -> str:
    """The first operand that is no constant."""
    return str(next(name for name in node.input if name not in graph.weights))


def _scales_last_axis(graph: WorkingGraph, node: onnx.NodeProto) -> bool:
    """Whether a node combines an image with one constant that is the same for all rows and columns."""
    if not is_standard(node) or node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
        return False
    constants = [graph.weights[name] for name in node.input if name in graph.weights]
    if len(constants) != 1 or constants[0].ndim > 4:
        return False
    source, result = graph.tensors[_image(graph, node)], graph.tensors[node.output[0]]
    same_shape = source.shape is not None and source.shape == result.shape and len(source.shape) == 4
    return same_shape and constants[0].size == (constants[0].shape or (1,))[-1]


def _put_first(draft: WorkingDraft, transpose: onnx.NodeProto, chain: list[onnx.NodeProto]) -> None:
    """Writes the chain anew behind the Transpose, each node under the name of the one that then stands in its place."""
    graph = draft.graph
    results = [*(node.output[0] for node in chain), transpose.output[0]]
    source, shape = _image(graph, chain[0]), graph.tensors[transpose.output[0]].shape
    for node, result in zip((transpose, *chain), results, strict=True):
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[:] = [_spread(draft, name) if name in graph.weights else source for name in node.input]
        made.output[0] = source = result
        draft.put(made)
        draft.tensors[result] = replace(draft.tensors[result], shape=shape)


def _spread(draft: WorkingDraft, constant: str) -> str:
    """The constant, its last axis as channels."""
    value = draft.graph.weights[constant]
    return constant if value.size == 1 else draft.add_weight(f"{constant}/channels", value.reshape(1, -1, 1, 1))


def _joined(graph: WorkingGraph) -> WorkingGraph:
    draft, uses = WorkingDraft(graph), use_counts(graph.proto.graph)
    made_by = producers(graph.proto.graph.node)
    steps = {node.output[0]: step for node in graph.proto.graph.node if (step := _step(graph, node)) is not None}
    continued = {step.source for step in steps.values() if uses[step.source] == 1}
    for name, step in steps.items():
        if name in continued:
            continue
        chain = [step]
        while chain[0].source in steps and chain[0].source in continued:
            chain.insert(0, steps[chain[0].source])
        before = made_by.get(chain[0].source)
        is_taken_in = (
            before is not None and graph.proto.graph.node[before].op_type == "Conv" and chain[0].source in continued
        )
        if any(each.is_per_channel for each in chain) and (len(chain) > 1 or not (step.is_norm or is_taken_in)):
            _write(draft, chain)
    return draft.finished()


@dataclass(frozen=True, eq=False)
class _Step:
    """A node of a chain: `result` is `source` scaled and shifted."""

    source: str
    result: str
    affine: Affine
    is_norm: bool
    is_per_channel: bool


def _step(graph: WorkingGraph, node: onnx.NodeProto) -> _Step | None:
    if not is_standard(node) or len(writes(node)) != 1 or not node.input:
        return None
    images = [name for name in node.input if name in graph.tensors and name not in graph.weights]
    if len(images) != 1:
        return None
    source, result = graph.tensors[images[0]], graph.tensors[writes(node)[0]]
    if source.dtype != "float32" or source.shape is None or len(source.shape) != 4 or source.shape != result.shape:
        return None
    channels = source.shape[1]
    affine = affine_of(node, images[0], graph.weights, channels, 4)
    if affine is None or not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
        return None
    per_channel = channels > 1 and any(graph.weights[n].size == channels for n in node.input if n in graph.weights)
    return _Step(images[0], result.name, affine, node.op_type == "BatchNormalization", per_channel)


def _write(draft: WorkingDraft, chain: list[_Step]) -> None:
    """One batch normalization for the chain, under the name of its last node."""
    scale, shift = chain[0].affine.scale, chain[0].affine.shift
    for step in chain[1:]:
        scale, shift = scale * step.affine.scale, shift * step.affine.scale + step.affine.shift
    result = chain[-1].result
    parameters = {"scale": scale, "shift": shift, "mean": np.zeros_like(scale), "variance": np.ones_like(scale)}
    names = [draft.add_weight(f"{result}/{key}", value.astype(np.float32)) for key, value in parameters.items()]
    for step in chain[:-1]:
        draft.drop(step.result)
    draft.put(make_node("BatchNormalization", [chain[0].source, *names], [result], epsilon=0.0))
