"""Value numbering: tensors with equal numbers always have equal values."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from iosched.models.digest import node_digest, opsets_of
from iosched.models.model import Model
from iosched.models.node_attributes import subgraphs
from iosched.models.wiring import is_standard, writes

# Operators with random results; those of other domains are recognized by words in their names.
_RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_RANDOM_WORDS = ("Random", "Dropout", "Bernoulli", "Multinomial")


def value_numbers(model: Model, owner: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """A hash of how each tensor of `model` is computed, weights included. O(nodes + bytes of weights).

    Args:
        model: the model.
        owner: distinguishes random results from those of other models.
        inputs: identifies each input's value; equal texts mean equal values.
    """
    opsets = opsets_of(model.proto)
    found = {spec.name: f"input {inputs[spec.name]}" for spec in model.graph.inputs}
    found.update(model.weight_digests)
    for node in model.proto.graph.node:
        identity = f"{owner}/{node.name}" if is_random(node) else node_digest(node, opsets, found)
        count = len(node.output)  # a Split's sizes depend on the number of its outputs
        found.update((name, f"{identity} {list(node.output).index(name)}/{count}") for name in writes(node))
    return found


def is_random(node: onnx.NodeProto) -> bool:
    """Whether the node's results may differ between runs on equal inputs."""
    if node.op_type == "Dropout" and is_standard(node) and not any(node.input[2:]):
        return False  # inactive outside training
    if node.op_type in _RANDOM or any(word in node.op_type for word in _RANDOM_WORDS):
        return True
    return any(is_random(inner) for graph in subgraphs(node) for inner in graph.node)
