"""Memory of models is that of their weights, equal ones once, and of the tensors that are alive at once."""

from __future__ import annotations

import pytest
from import_helpers import data, model_of, weight
from onnx import helper

from iosched.models.composition.compose import Footprint, footprint_of, together_nbytes
from iosched.models.load import load_model

node = helper.make_node
IMAGE = 4 * 5 * 5 * 4  # bytes of each tensor below


def footprint(nodes: list[object], outputs: list[str], seed: int = 0) -> Footprint:
    proto = model_of(nodes, {"x": [1, 4, 5, 5]}, outputs, {"w": weight(4, 4, 1, 1), "v": weight(4, 4, 1, 1, seed=seed)})
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
    assert footprint(nodes, outputs).activations_nbytes == images * IMAGE


def test_equal_weights_count_once() -> None:
    size = 4 * 4 * 4
    one, same, other = (footprint(CHAIN, ["y"], seed) for seed in (1, 1, 2))
    assert one.nbytes == 2 * size + 2 * IMAGE
    assert together_nbytes([one, same]) == 2 * size + 4 * IMAGE
    assert together_nbytes([one, other]) == 3 * size + 4 * IMAGE
