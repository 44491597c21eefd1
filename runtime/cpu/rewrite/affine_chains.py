"""Joins nodes that scale and shift every channel by constants into one batch normalization.

Frameworks export a normalization as a product and a sum. onnxruntime fuses them into a preceding convolution, but
elsewhere, such as after a Concat, it leaves the blocked layout for the sum. A batch normalization stays in it, as a
depthwise convolution with the following activation.

If such a chain scales channels-last images, a following Transpose moves before it: broadcasting three numbers is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.affine import Affine, affine_of
from iosched.models.node_attributes import copied, integers
from iosched.models.wiring import is_standard, writes
from iosched.runtime.cpu.rewrite.images import is_image

_CHANNELS_FIRST = (0, 3, 1, 2)
_OLDEST_OPSET = 9  # older batch normalizations have attributes that say how to run them


def join_affine(graph: EditableGraph) -> None:
    """Replace each such chain by one node; O(nodes + edges + weights of the chains)."""
    if graph.opset >= _OLDEST_OPSET:
        _put_transposes_first(graph)
        _join_chains(graph)


def _put_transposes_first(graph: EditableGraph) -> None:
    for node in graph.nodes:
        if is_standard(node, "Transpose") and integers(node, "perm") == _CHANNELS_FIRST:
            _put_first(graph, node, _scalings_before(graph, node.input[0]))


def _scalings_before(graph: EditableGraph, tensor: str) -> list[NodeProto]:
    chain: list[NodeProto] = []
    while (node := graph.producer(tensor)) is not None and _scales_last_axis(graph, node):
        chain.insert(0, node)
        tensor = _image(graph, node)
    return chain


def _image(graph: EditableGraph, node: NodeProto) -> str:
    return str(next(name for name in node.input if name not in graph.weights))


def _constants(graph: EditableGraph, node: NodeProto) -> list[np.ndarray]:
    return [graph.weights[name] for name in node.input if name in graph.weights]


def _scales_last_axis(graph: EditableGraph, node: NodeProto) -> bool:
    """Whether a node with one reader combines an image with a constant that is the same for all rows and columns."""
    if not is_standard(node, "Add", "Sub", "Mul", "Div") or graph.uses(node.output[0]) > 1:
        return False
    constants = _constants(graph, node)
    if len(node.input) != 2 or len(constants) != 1 or constants[0].ndim > 4:
        return False
    shape = graph.shape(_image(graph, node))
    same_shape = len(shape) == 4 and shape == graph.shape(node.output[0])
    return same_shape and constants[0].size == (constants[0].shape or (1,))[-1]


def _put_first(graph: EditableGraph, transpose: NodeProto, chain: Sequence[NodeProto]) -> None:
    """Move the Transpose before the chain; each node takes the name of its new position."""
    if not chain:
        return
    results = [node_name(node) for node in (*chain, transpose)]
    source, shape = _image(graph, chain[0]), graph.shape(transpose.output[0])
    for node, result in zip((transpose, *chain), results, strict=True):
        made = copied(node)
        made.input[:] = [_spread(graph, name) if name in graph.weights else source for name in node.input]
        made.output[0] = made.name = source = result
        graph.replace(result, made)
        graph.set_shape(result, shape)


def _spread(graph: EditableGraph, constant: str) -> str:
    value = graph.weights[constant]
    if value.size == 1:
        return constant
    return graph.add_fresh_weight(f"{constant}/channels", value.reshape(1, -1, 1, 1))


@dataclass(frozen=True, eq=False)
class _AffineChain:
    """Consecutive nodes with these results; the last is `source` scaled and shifted."""

    source: str
    results: tuple[str, ...]
    affine: Affine
    is_norm: bool
    is_per_channel: bool

    def then(self, other: _AffineChain) -> _AffineChain:
        scale = self.affine.scale * other.affine.scale
        shift = self.affine.shift * other.affine.scale + other.affine.shift
        is_per_channel = self.is_per_channel or other.is_per_channel
        return _AffineChain(self.source, self.results + other.results, Affine(scale, shift), False, is_per_channel)


def _join_chains(graph: EditableGraph) -> None:
    chains: dict[str, _AffineChain] = {}
    for node in graph.nodes:
        chain = _chain_of_one(graph, node)
        if chain is None:
            continue
        if chain.source in chains and graph.uses(chain.source) == 1:
            chain = chains.pop(chain.source).then(chain)
        chains[node_name(node)] = chain
    for chain in chains.values():
        if _is_worth_joining(graph, chain):
            _join(graph, chain)


def _chain_of_one(graph: EditableGraph, node: NodeProto) -> _AffineChain | None:
    images = [name for name in node.input if name in graph.tensors]
    if not is_standard(node) or len(writes(node)) != 1 or len(images) != 1:
        return None
    source, result = images[0], node_name(node)
    if not is_image(graph, source) or graph.shape(source) != graph.shape(result):
        return None
    channels = graph.shape(source)[1]
    affine = affine_of(node, source, graph.weights, channels, 4)
    if affine is None or not np.isfinite([affine.scale, affine.shift]).all():
        return None
    is_norm = node.op_type == "BatchNormalization"
    is_per_channel = channels > 1 and any(array.size == channels for array in _constants(graph, node))
    return _AffineChain(source, (result,), affine, is_norm, is_per_channel)


def _is_worth_joining(graph: EditableGraph, chain: _AffineChain) -> bool:
    if len(chain.results) > 1 or not chain.is_per_channel:
        return chain.is_per_channel
    before = graph.producer(chain.source)
    is_taken_in = before is not None and before.op_type == "Conv" and graph.uses(chain.source) == 1
    return not (chain.is_norm or is_taken_in)


def _join(graph: EditableGraph, chain: _AffineChain) -> None:
    *inner, result = chain.results
    scale, shift = np.array([chain.affine.scale, chain.affine.shift], np.float32)
    parameters = {"scale": scale, "shift": shift, "mean": np.zeros_like(scale), "variance": np.ones_like(scale)}
    names = [graph.add_fresh_weight(f"{result}/{key}", value) for key, value in parameters.items()]
    graph.remove(*inner)
    inputs = [chain.source, *names]
    graph.replace(result, make_node("BatchNormalization", inputs, [result], name=result, epsilon=0.0))
