"""The analytic model with measured stages; stages of this CPU replace those of a GPU on another machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import onnx
import pytest
from by_definition import best_us, groups_of
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire
from small_models import models

from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.scaled import MeasuredFactor, ScaledCost, Scaling, scaling
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.imported_stages import ImportedStages
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import AttachedModel
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.blocks import partition
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.signature import stage_signature
from iosched.scheduler.strategies import STAGE_RULES


def analytic(model: Model | None = None) -> AnalyticCost:
    gpu = gpu_named("v100")
    assert gpu is not None
    return AnalyticCost((model or fire()).graph, gpu)


def scaled(known: Callable[[Stage], float | None], *stages: Stage) -> ScaledCost:
    """The model of `fire` on a V100, where these stages, and those with equal keys, were measured."""
    cost = analytic()
    latency_us = {signature(stage): us for stage in stages if (us := known(stage)) is not None}
    return ScaledCost(cost, ImportedStages("a V100", latency_us, signature, cost.operator_key))


def signature(stage: Stage) -> str:
    return stage_signature(fire().graph, stage)


def alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


PAIR = Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))
MERGED = Stage(Strategy.MERGE, (("f1",), ("f3",)))


@contextmanager
def on_cpu(folder: Path) -> Iterator[AttachedModel]:
    with (
        ProfileDatabase(folder / "p.db") as database,
        closing(CpuDevice().open(fire(), OpenSettings(threads=2), database)) as opened,
    ):
        yield opened


@pytest.mark.slow
def test_stages_measured_on_a_cpu_keep_their_measured_latencies(tmp_path: Path) -> None:
    stages = [*sequential(fire().graph).stages, *greedy(fire().graph).stages]
    with on_cpu(tmp_path) as there:
        took = {signature(stage): there.cost.stage_latency_us(stage) for stage in stages}
        cost = scaled(lambda stage: known_us(there.cost, stage), *stages)
    assert cost.measured.share(stages, cost.stage_latency_us) == pytest.approx(1)
    for stage in stages:
        assert cost.lower_bound_us(stage) == cost.stage_latency_us(stage) == took[signature(stage)]
        assert cost.stage_latency_us(stage) != analytic().stage_latency_us(stage)


def test_an_unmeasured_operator_is_scaled_by_the_measured_ones() -> None:
    factors, plain = {"gs": 2.0, "f1": 3.0, "f3": 7.0}, analytic()
    cost = scaled(lambda each: factors[each.operators[0]] * plain.stage_latency_us(each), *map(alone, factors))
    expected = scaling(MeasuredFactor("convolution", factor) for factor in factors.values())
    assert cost.scaling == Scaling(
        pytest.approx(expected.factor), {"convolution": pytest.approx(expected.of("convolution"))}
    )
    assert plain.operator_kind("fc") == "elementwise"
    assert cost.stage_latency_us(alone("fc")) == pytest.approx(expected.factor * plain.stage_latency_us(alone("fc")))
    assert cost.stage_latency_us(alone("g3")) == pytest.approx(7 * plain.stage_latency_us(alone("f3"))), "same as f3"


@pytest.mark.parametrize("stage", [PAIR, MERGED])
def test_an_unmeasured_stage_is_scaled_like_its_operators(stage: Stage) -> None:
    factors = {"f1": 3.0, "f3": 7.0}
    plain = analytic()
    cost = scaled(lambda each: factors[each.operators[0]] * plain.stage_latency_us(each), alone("f1"), alone("f3"))
    us = {name: plain.stage_latency_us(alone(name)) for name in factors}
    factor = (3 * us["f1"] + 7 * us["f3"]) / (us["f1"] + us["f3"])
    assert cost.stage_latency_us(stage) == pytest.approx(factor * plain.stage_latency_us(stage))
    assert cost.lower_bound_us(stage) == pytest.approx(factor * plain.lower_bound_us(stage))


def test_a_group_takes_the_sum_of_its_measured_operators() -> None:
    cost = scaled(lambda stage: 100.0 if stage.operators == ("g3",) else 5.0, alone("g3"), alone("gs"))
    in_order = Stage(Strategy.CONCURRENT, (("gs", "g3"),))
    assert cost.stage_latency_us(in_order) == pytest.approx(105)


def test_only_stages_of_one_operator_determine_the_scaling() -> None:
    cost = scaled(lambda stage: 1.0, PAIR)
    assert cost.stage_latency_us(PAIR) == 1
    assert cost.stage_latency_us(MERGED) == analytic().stage_latency_us(MERGED)
    assert cost.scaling.factor == 1


def test_a_stage_measured_as_unrunnable_is_in_no_schedule() -> None:
    cost = scaled(lambda stage: math.inf, PAIR, MERGED)
    found = search(cost.graph, cost)
    assert math.isfinite(found.schedule.predicted_us or math.inf)
    assert not {PAIR.groups} & {stage.groups for stage in found.schedule.stages}
    assert cost.measured.share([PAIR], cost.stage_latency_us) == 0


def test_an_operator_measured_as_free_is_also_free_in_a_stage() -> None:
    """Where a Concat is placed by the operators that it reads, it runs no kernel."""
    cost = scaled(lambda stage: 0.0, alone("fc"))
    assert cost.scaling.factor == 1
    assert cost.stage_latency_us(alone("gc")) == 0
    behind = Stage(Strategy.CONCURRENT, (("f1", "fc"),))
    assert cost.stage_latency_us(behind) == pytest.approx(analytic().stage_latency_us(alone("f1")))


def test_the_share_is_of_the_latency_and_not_of_the_stages() -> None:
    cost = scaled(lambda stage: 30.0, PAIR)
    rest = alone("gs")
    rest_us = cost.stage_latency_us(rest)
    assert cost.measured.share([PAIR, rest], cost.stage_latency_us) == pytest.approx(30 / (30 + rest_us))


def test_no_stage_is_faster_than_its_bound() -> None:
    cost = scaled(lambda stage: 40.0 if len(stage.operators) == 1 else 50.0, alone("f1"), alone("gs"), PAIR)
    stages = [*greedy(fire().graph).stages, *sequential(fire().graph).stages, PAIR, MERGED]
    assert all(cost.lower_bound_us(stage) <= cost.stage_latency_us(stage) for stage in stages)


def stage_of(graph: ComputationGraph, names: frozenset[str], strategy: Strategy) -> Stage:
    """The operators as one stage, as the search would ask for it."""
    order = {name: index for index, name in enumerate(graph.by_name)}
    groups = sorted(tuple(sorted(group, key=order.__getitem__)) for group in groups_of(graph, names))
    return Stage(strategy, tuple(sorted(groups, key=lambda group: order[group[0]])))


def ways(graph: ComputationGraph, names: frozenset[str]) -> list[Stage]:
    """The stages that run these operators."""
    made = [stage_of(graph, names, strategy) for strategy in (Strategy.CONCURRENT, Strategy.MERGE)]
    if len(names) == 1 or STAGE_RULES[Strategy.MERGE].refusal(graph, made[0].operators) is not None:
        return made[:1]
    return [made[0], Stage(Strategy.MERGE, tuple((name,) for name in made[0].operators))]


def made_up(found: str, seed: int) -> float:
    """A latency for each signature."""
    return 1 + int(hashlib.sha256(f"{seed} {found}".encode()).hexdigest()[:4], 16) / 500


class MadeUp(dict[str, float]):
    """Arbitrary latencies for the given part of the signatures, as if only these were measured."""

    def __init__(self, part: float, seed: int) -> None:
        self.part, self.seed = part, seed

    def get(self, key: str, default: float | None = None) -> float | None:
        is_measured = made_up(key, self.seed + 1) <= 1 + 65536 / 500 * self.part
        return made_up(key, self.seed) if is_measured else default


@pytest.mark.slow
@given(models(most=7), st.sampled_from((0.0, 0.2, 0.6, 1.0)), st.integers(0, 99))
def test_the_search_is_optimal_under_a_mixture_of_measured_and_modelled_latencies(
    proto: onnx.ModelProto, part: float, seed: int
) -> None:
    """Against all schedules of each block, one by one."""
    model = load_model(proto.SerializeToString())
    plain, known = analytic(model), MadeUp(part, seed)
    signature_of = partial(stage_signature, model.graph)
    cost = ScaledCost(plain, ImportedStages("a V100", known, signature_of, plain.operator_key))
    found = search(model.graph, cost)

    def latency_us(names: frozenset[str]) -> float:
        return min(map(cost.stage_latency_us, ways(model.graph, names)))

    blocks = [frozenset(block.operators) for block in partition(model.graph)]
    assert found.schedule.predicted_us == pytest.approx(
        sum(best_us(model.graph, latency_us, 3, 8, block) for block in blocks)
    )
    for stage in found.schedule.stages:
        us = known.get(signature_of(stage))
        assert stage.predicted_us == (cost.stage_latency_us(stage) if us is None else us)
        assert us is None or part > 0
    if part == 0:
        assert found.schedule.predicted_us == search(model.graph, plain).schedule.predicted_us
    if part == 1:
        share = cost.measured.share(found.schedule.stages, cost.stage_latency_us)
        assert share == (pytest.approx(1) if model.graph.operators else 0)


def test_runs_in_flight_gain_the_analytic_factor_over_measured_latencies() -> None:
    cost, schedule = scaled(lambda stage: 100.0, alone("g3"), PAIR), sequential(fire().graph)
    alone_us = sum(map(cost.stage_latency_us, schedule.stages))
    assert cost.in_flight_us(schedule, 1) == pytest.approx(alone_us)
    gain = analytic().in_flight_us(schedule, 1) / analytic().in_flight_us(schedule, 4)
    assert cost.in_flight_us(schedule, 4) == pytest.approx(alone_us / gain)
    assert gain > 1
