"""Operations of cells keep channels and halve images; outputs are as in the papers."""

from __future__ import annotations

import pytest
from small_models import data

from iosched.models.load import load_model
from iosched.models.spaces import darts, nasnet
from iosched.models.spaces.cells import Operation
from iosched.models.spaces.space import builtin_space
from iosched.models.zoo.network import Network

OPERATIONS = {**nasnet.OPERATIONS, **darts.OPERATIONS}


def test_the_number_of_operations_is_that_of_the_papers() -> None:
    assert len(nasnet.OPERATIONS) == 13
    assert len(darts.OPERATIONS) == 7


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
@pytest.mark.parametrize(("stride", "size", "left"), [(1, 9, 9), (2, 9, 5), (2, 8, 4)])
def test_an_operation_keeps_channels_and_halves_at_a_stride(
    operation: Operation, stride: int, size: int, left: int
) -> None:
    net = Network("one")
    made = operation(net, net.input(4, size), stride, "operation")
    assert made.shape == (4, left, left)
    if net.model.graph.node:
        assert load_model(data(net.finish(made))).graph.tensor[made.name].shape == (1, *made.shape)


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("nasnet", (5, 3)),
        ("darts", (4, 4)),
        ("enas", (5, 4)),
    ],  # no block reads NASNet-A's normal blocks; two of its reduction blocks are read
)
def test_the_output_of_cells_is_their_unread_states(name: str, states: tuple[int, int]) -> None:
    tensors = builtin_space(name).base_model().graph.tensor
    normal, reduction = states
    shapes = [tensors[f"cell{number}"].shape for number in range(1, 6)]
    assert shapes == [
        (1, normal * 16, 32, 32),
        (1, reduction * 32, 16, 16),
        (1, normal * 32, 16, 16),
        (1, reduction * 64, 8, 8),
        (1, normal * 64, 8, 8),
    ]


def test_concatenated_operations_are_reduced_to_the_cells_width() -> None:
    block = nasnet.CellBlock(("before", "now"), ("identity", "conv_3x3"), "concat")
    cells = nasnet.Cells(normal=(block,), reduction=(block,))
    model = load_model(data(nasnet.draw(Network("one"), cells, 32)))
    assert model.graph.tensor["cell1/block1/concat"].shape == (1, 32, 16, 16)
    assert model.graph.tensor["cell1/block1"].shape == (1, 16, 16, 16)
