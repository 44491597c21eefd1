"""Numbers the values of a model: tensors of one number have one value whenever the model runs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from iosched.models.digest import node_digest, opsets_of
from iosched.models.model import Model
from iosched.models.node_attributes import subgraphs
from iosched.models.wiring import is_standard, writes

# Results of these types differ from run to run. Those outside ONNX's own domain are recognized by words in their names.
_RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_RANDOM_WORDS = ("Random", "Dropout", "Bernoulli", "Multinomial")


def value_numbers(model: Model, owner: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """For every tensor of `model`, weights included, a hash of how it is computed; see `models.digest`.

    Args:
        model: what is numbered.
        owner: tells apart what differs from run to run: such tensors have the number of no tensor of another owner.
        inputs: what the model is fed with, by the names of its inputs; inputs that are fed with one thing are equal.

    Complexity: O(nodes + bytes of weights).
    """
    opsets = opsets_of(model.proto)
    found = {spec.name: f"input {inputs[spec.name]}" for spec in model.graph.inputs}
    found.update(model.weight_digests)
    for node in model.proto.graph.node:
        identity = f"{owner}/{node.name}" if is_random(node) else node_digest(node, opsets, found)
        count = len(node.output)  # a Split has parts of other sizes where it has more of them
        found.update((name, f"{identity} {list(node.output).index(name)}/{count}") for name in writes(node))
    return found


def is_random(node: onnx.NodeProto) -> bool:
    """Whether the node's results may differ between two runs on the same inputs."""
    if node.op_type == "Dropout" and is_standard(node) and not any(node.input[2:]):
        return False  # not told that it trains, it passes on what it reads
    if node.op_type in _RANDOM or any(word in node.op_type for word in _RANDOM_WORDS):
        return True
    return any(is_random(inner) for graph in subgraphs(node) for inner in graph.node)
