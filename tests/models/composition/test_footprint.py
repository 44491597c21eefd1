"""Memory of models is that of their weights, equal ones once, and of the tensors that are alive at once."""

from __future__ import annotations

import pytest
from onnx import helper
from small_models import data, proto_of, weight

from iosched.models.composition.compose import Footprint, footprint_of, together_nbytes
from iosched.models.load import load_model

node = helper.make_node
IMAGE = 4 * 5 * 5 * 4  # bytes of each tensor below
WEIGHT = 4 * 4 * 4


def footprint(nodes: list[object], outputs: list[str], seed: int = 0) -> Footprint:
    proto = proto_of(nodes, {"x": [1, 4, 5, 5]}, outputs, {"w": weight(4, 4, 1, 1), "v": weight(4, 4, 1, 1, seed=seed)})
    return footprint_of(load_model(data(proto)))


CHAIN = [node("Conv", ["x", "w"], ["a"]), node("Conv", ["a", "v"], ["b"]), node("Neg", ["b"], ["y"])]


@pytest.mark.parametrize(
    ("nodes", "outputs", "images"),
    [
        (CHAIN, ["y"], 2),
        (CHAIN, ["y", "a"], 3),
        ([*CHAIN, node("Add", ["x", "y"], ["z"])], ["z"], 3),
        ([*CHAIN, node("Neg", ["a"], ["u"])], ["y", "u"], 3),
    ],
)
def test_tensors_count_while_they_are_read(nodes: list[object], outputs: list[str], images: int) -> None:
    assert together_nbytes([footprint(nodes, outputs)]) == WEIGHT + images * IMAGE


def test_equal_weights_count_once() -> None:
    one, same, other = (footprint(CHAIN, ["y"], seed) for seed in (1, 1, 2))
    assert together_nbytes([one]) == 2 * WEIGHT + 2 * IMAGE
    assert together_nbytes([one, same]) == 2 * WEIGHT + 4 * IMAGE
    assert together_nbytes([one, other]) == 3 * WEIGHT + 4 * IMAGE
