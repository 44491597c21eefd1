"""However the cores are divided into teams, and the batch among them, the outputs are those of plain onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import branches, loaded, models, proto_of, weight

from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cpu import team_model as divided
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.team_model import TeamBackends, lower_in_teams, open_divided
from iosched.runtime.divided_sessions import open_shared
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.runtime.requests import Requests
from iosched.scheduler.baselines import greedy, sequential, together
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

SCHEDULES = {"sequential": sequential, "greedy": greedy, "together": together}


@contextmanager
def ready(model: Model, teams: Teams, lanes: int, schedule: Schedule | None = None) -> Iterator[Requests]:
    with (
        closing(TeamBackends(model, teams.lanes(lanes))) as backends,
        closing(LaneCpus(lanes)) as cpus,
        closing(open_divided(backends, schedule or sequential(model.graph), teams, cpus)) as found,
    ):
        yield found


def small(batch: int) -> Model:
    return load_model(branches().SerializeToString(), name="branches", batch_size=batch)


@pytest.mark.slow
@given(
    proto=models(most=7),
    batch=st.integers(2, 7),
    lanes=st.integers(1, 4),
    count=st.integers(1, 4),
    images=st.integers(1, 4),
    kind=st.sampled_from(tuple(SCHEDULES)),
)
def test_any_division_computes_what_onnxruntime_does(
    proto: onnx.ModelProto, batch: int, lanes: int, count: int, images: int, kind: str
) -> None:
    model = load_model(proto.SerializeToString(), name="m", batch_size=batch)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    with ready(model, Teams(1, count, images), lanes, SCHEDULES[kind](model.graph)) as found:
        check = compare(found.run(inputs), expected)
    assert check.passed, check.reasons


@pytest.mark.parametrize("is_native", [True, False])
def test_both_executors_run_teams(monkeypatch: pytest.MonkeyPatch, is_native: bool) -> None:
    if not is_native:
        monkeypatch.setattr(divided, "available", lambda: False)
    model = small(5)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, ready(model, Teams(1, 2, 2), 2) as found:
        assert compare(found.run(inputs), reference.run(inputs)).passed
        assert len(found.time(inputs, 3)) == 3


@pytest.mark.parametrize(("count", "images"), [(1, 1), (2, 1), (2, 2)])
def test_teams_add_in_place_where_their_own_pieces_lie(count: int, images: int) -> None:
    weights = {name: weight(16, 16, 3, 3, seed=seed) for seed, name in enumerate(("u", "v"))}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "u"], ["first"], pads=[1] * 4),
        onnx.helper.make_node("Relu", ["first"], ["before"]),
        onnx.helper.make_node("Conv", ["before", "v"], ["inner"], pads=[1] * 4),
        onnx.helper.make_node("Relu", ["inner"], ["relu"]),
        onnx.helper.make_node("Conv", ["relu", "v"], ["after"], pads=[1] * 4),
        onnx.helper.make_node("Add", ["after", "before"], ["y"]),
    ]
    model = loaded(proto_of(nodes, {"x": (4, 16, 8, 8)}, ["y"], weights))
    teams, inputs = Teams(1, count, images), random_inputs(model.graph.inputs)
    with closing(TeamBackends(model, 1)) as backends:
        plan = lower_in_teams(backends, sequential(model.graph), teams).plan
        adding = [task for lane in plan.lanes for task in lane if task.in_place]
        assert adding
        assert all({*task.in_place} <= {*task.reads} & {*task.writes} for task in adding)
    with Reference(model) as reference, ready(model, teams, count) as found:
        assert compare(found.run(inputs), reference.run(inputs)).passed


def test_several_callers_get_each_their_own_result() -> None:
    model = small(1)
    given = [random_inputs(model.graph.inputs, seed) for seed in range(24)]
    with Reference(model) as reference, ready(model, Teams(2, 1, 1), 2) as found:
        with ThreadPoolExecutor(6) as callers:
            results = list(callers.map(found.run, given))
        for inputs, result in zip(given, results, strict=True):
            assert compare(result, reference.run(inputs)).passed


def test_outputs_that_are_constant_come_with_every_request() -> None:
    nodes = [onnx.helper.make_node("Mul", ["x", "k"], ["y"])]
    model = loaded(proto_of(nodes, {"x": (1, 8)}, ["y", "k"], {"k": weight(1, 8)}))
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, ready(model, Teams(2, 1, 1), 2) as found:
        assert compare(found.run(inputs), reference.run(inputs)).passed


def test_requests_that_go_on_at_the_same_time_are_timed_together() -> None:
    with ready(small(1), Teams(2, 1, 1), 2) as found:
        assert found.in_flight == 2
        assert len(found.time(random_inputs(small(1).graph.inputs), 4)) == 4


def test_a_model_that_mixes_images_is_refused() -> None:
    softmax = onnx.helper.make_node("Softmax", ["y"], ["z"], axis=0)
    proto = branches(4)
    proto.graph.node.append(softmax)
    proto.graph.output[0].name = "z"
    model = load_model(proto.SerializeToString(), name="mixed")
    with closing(TeamBackends(model, 1)) as backends, pytest.raises(UsageError, match="Softmax 'z'"):
        lower_in_teams(backends, sequential(model.graph), Teams(1, 2, 2))


@pytest.mark.parametrize("teams", [Teams(1, 2, 1), Teams(1, 3, 2), Teams(2, 1, 5), Teams(1, 1, 2)], ids=str)
def test_sessions_of_onnxruntime_that_share_a_batch_compute_what_one_does(teams: Teams) -> None:
    model = small(5)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, closing(open_shared(model, teams, 2)) as found:
        assert compare(found.run(inputs), reference.run(inputs)).passed
        assert len(found.time(inputs, 2)) == 2
