"""The gain of batching is the difference between two sample schedules, each of which is computed once."""

from __future__ import annotations

from dataclasses import replace

from batches import variants
from onnx import helper
from small_models import data, weight

from iosched.jobs.batching.sampled_costs import SampledCosts
from iosched.models.batching.operator_batch import ensemble_of
from iosched.models.composition.compose import Composition, compose
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.scheduler.batching.planner import folded

node = helper.make_node
NODES = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Conv", ["r", "v"], ["y"])]


def whole(count: int = 3, with_one_weight: int = 3) -> Composition:
    """`count` models; the last convolution has the same weight in the first `with_one_weight` of them only."""
    protos = variants(
        NODES,
        {"x": [1, 4, 6, 6]},
        ["y"],
        lambda seed: {
            "w": weight(4, 4, 3, 3, seed=seed),
            "v": weight(4, 4, 1, 1, seed=max(seed - with_one_weight + 1, 0)),
        },
        count,
    )
    return compose({f"m{index}": load_model(data(proto)) for index, proto in enumerate(protos)})


class Counting:
    """Ten microseconds for each operator; records the models that it was called with."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, model: Model) -> float:
        self.asked.append(tuple(operator.type for operator in model.graph.operators))
        return 10.0 * len(model.graph.operators)


def test_a_gain_is_the_latency_of_separate_operators_minus_that_of_one() -> None:
    found, best_us = whole(), Counting()
    costs = SampledCosts(found.model, ensemble_of(found), best_us)
    graph = found.model.graph
    assert costs.gain_us([graph.by_name["m0/r"], graph.by_name["m1/r"]], 2) == 20 - 10
    assert best_us.asked == [("Conv", "Conv"), ("Conv",)]
    assert costs.gain_us([graph.by_name["m1/r"], graph.by_name["m2/r"]], 2) == 20 - 10
    assert len(best_us.asked) == 2
    assert costs.gain_us([graph.by_name["m0/r"], graph.by_name["m1/r"]], 5) == 50 - 10


def test_separate_operators_cost_less_if_whole_models_run_side_by_side() -> None:
    """This needs no further sample."""
    found, best_us = whole(), Counting()
    costs = SampledCosts(found.model, ensemble_of(found), best_us)
    operators = [found.model.graph.by_name[name] for name in ("m0/r", "m1/r")]
    costs.gain_us(operators, 2)
    assert replace(costs, share=0.25).gain_us(operators, 2) == 5 - 10
    assert len(best_us.asked) == 2


def test_operators_that_share_a_weight_are_sampled_separately() -> None:
    found, best_us = whole(with_one_weight=2), Counting()
    costs = SampledCosts(found.model, ensemble_of(found), best_us)
    one, same, other = (found.model.graph.by_name[f"m{index}/y"] for index in range(3))
    costs.gain_us([one, same], 2)
    costs.gain_us([one, other], 2)
    costs.gain_us([same, other], 2)
    assert best_us.asked == [("Conv", "Conv"), ("Conv",)] * 2


def test_operators_that_run_in_sequence_need_a_sample_of_one_alone() -> None:
    found, best_us = whole(), Counting()
    costs = SampledCosts(found.model, ensemble_of(found), best_us, in_turn=True)
    operators = [found.model.graph.by_name[name] for name in ("m0/r", "m1/r", "m2/r")]
    assert costs.gain_us(operators[:2], 2) == 20 - 10
    assert costs.gain_us(operators, 3) == 30 - 10
    assert costs.separate_us(operators, 5) == 50
    assert best_us.asked == [("Conv",)] * 3  # alone, as one of two, as one of three


def test_joins_and_splits_are_sampled_once_per_shape() -> None:
    found, best_us = whole(), Counting()
    costs = SampledCosts(found.model, ensemble_of(found), best_us)
    for name in ("m0/x", "m1/x"):
        assert costs.join_us(found.model.graph.tensor[name], 3) == 10
        assert costs.part_us(found.model.graph.tensor[name], 3) == 10
    assert best_us.asked == [("Concat",), ("Split",)]


def test_a_plan_uses_sampled_costs() -> None:
    found = whole()
    ensemble = ensemble_of(found)
    plan = folded(ensemble, SampledCosts(found.model, ensemble, Counting()))
    assert plan.all_groups() == (("m0/r", "m1/r", "m2/r"), ("m0/y", "m1/y", "m2/y"))
    assert plan.value_us() == (30 - 10) + (30 - 10) - 10 - 10
