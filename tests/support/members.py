"""Small models to be put together: chains of convolutions of one skeleton, and others."""

from __future__ import annotations

import onnx
from import_helpers import data, model_of, weight
from onnx import helper

from iosched.models.load import load_model
from iosched.models.model import Model

node = helper.make_node


def chain(seed: int = 0, *, channels: int = 4, kind: str = "Relu", opset: int = 17) -> onnx.ModelProto:
    """conv -> `kind` -> conv -> softmax, with weights of its own."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node(kind, ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"]),
        node("Softmax", ["c"], ["y"], axis=1),
    ]
    weights = {"w": weight(channels, 4, 3, 3, seed=seed), "v": weight(4, channels, 1, 1, seed=seed + 100)}
    return model_of(nodes, {"x": [1, 4, 12, 12]}, ["y"], weights, opset=opset)


def headed(seed: int = 0) -> onnx.ModelProto:
    """The backbone that all have, and a head of its own."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["y"]),
    ]
    weights = {"w": weight(4, 4, 3, 3, seed=7), "v": weight(4, 4, 1, 1, seed=seed)}
    return model_of(nodes, {"x": [1, 4, 12, 12]}, ["y"], weights)


def chains(count: int) -> dict[str, Model]:
    """So many chains, called a, b, c and so on."""
    return {name: loaded(chain(seed), name) for seed, name in enumerate("abcdefgh"[:count])}


def loaded(proto: onnx.ModelProto, name: str) -> Model:
    """The model of a file of this name."""
    return load_model(data(proto), name=name)
