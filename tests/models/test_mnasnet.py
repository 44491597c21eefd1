"""Sampled networks are determined by their seeds, differ, and share layers for batching."""

from __future__ import annotations

import numpy as np
import pytest
from batches import batch
from small_models import data, feeds_for

from iosched.models.load import load_model
from iosched.models.zoo.mnasnet import sampled, sampled_stages
from iosched.runtime.reference import Reference


def test_a_seed_gives_the_same_network_each_time() -> None:
    assert data(sampled(3, 32)) == data(sampled(3, 32))
    assert sampled_stages(3) != sampled_stages(4)


def test_draws_of_a_seed_do_not_change() -> None:
    """Stored measurements belong to these networks."""
    drawn = [(one.channels, one.blocks, one.kernel, one.expansion, one.excites) for one in sampled_stages(7)]
    assert drawn == [
        (24, 1, 5, 3, True),
        (40, 2, 5, 3, False),
        (48, 3, 3, 6, True),
        (72, 2, 5, 3, False),
        (120, 2, 3, 6, True),
        (240, 1, 3, 6, True),
    ]


def test_all_choices_are_drawn() -> None:
    stages = [stage for seed in range(40) for stage in sampled_stages(seed)]
    assert {stage.kernel for stage in stages} == {3, 5}
    assert {stage.expansion for stage in stages} == {3, 6}
    assert {stage.excites for stage in stages} == {True, False}
    assert {stage.channels for stage in stages if stage.stride == 1} == {72, 96, 120, 240, 320, 400}
    assert {stage.blocks for stage in stages} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", [0, 1])
def test_activations_neither_vanish_nor_explode(seed: int) -> None:
    model = load_model(data(sampled(seed, 64)))
    with Reference(model) as reference:
        (logits,) = reference.run(feeds_for(model)).values()
    assert logits.shape == (1, 1000)
    assert 0.05 < np.std(logits) < 20


@pytest.mark.slow
def test_sampled_networks_compute_the_same_batched() -> None:
    found = batch([sampled(seed, 32) for seed in range(3)])
    alone = sum(node.op_type == "Conv" for model in found.models.values() for node in model.proto.graph.node)
    assert found.types["Conv"] < alone - 10  # different networks: stages of one width are rare
