"""For any division of cores and batch into teams, the outputs are those of plain onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

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
from iosched.runtime.cpu.team_model import TeamBackends, TeamPlan, in_teams, lower_in_teams, open_divided
from iosched.runtime.divided_sessions import open_shared
from iosched.runtime.executor import Requests
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential, together
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams, for_cores

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
def test_any_division_computes_the_same_as_onnxruntime(
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
def test_teams_add_in_place_in_their_own_pieces(count: int, images: int) -> None:
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


def test_each_of_several_callers_gets_the_result_of_its_inputs() -> None:
    model = small(1)
    given = [random_inputs(model.graph.inputs, seed) for seed in range(24)]
    with Reference(model) as reference, ready(model, Teams(2, 1, 1), 2) as found:
        with ThreadPoolExecutor(6) as callers:
            results = list(callers.map(found.run, given))
        for inputs, result in zip(given, results, strict=True):
            assert compare(result, reference.run(inputs)).passed


def test_constant_outputs_are_returned() -> None:
    nodes = [onnx.helper.make_node("Mul", ["x", "k"], ["y"])]
    model = loaded(proto_of(nodes, {"x": (1, 8)}, ["y", "k"], {"k": weight(1, 8)}))
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, ready(model, Teams(2, 1, 1), 2) as found:
        assert compare(found.run(inputs), reference.run(inputs)).passed


def test_concurrent_requests_are_timed_together() -> None:
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
def test_onnxruntime_sessions_that_share_a_batch_compute_the_same_as_one(teams: Teams) -> None:
    model = small(5)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, closing(open_shared(model, teams, 2)) as found:
        assert compare(found.run(inputs), reference.run(inputs)).passed
        assert len(found.time(inputs, 2)) == 2


sizes = st.integers(1, 40)


@given(batch=sizes, count=sizes, images=sizes)
def test_every_image_is_taken_once_and_shares_differ_by_one(batch: int, count: int, images: int) -> None:
    pieces = Teams(1, count, images).pieces(batch)
    shares = [sum(piece.count for piece in own) for own in pieces]
    taken = [image for own in pieces for piece in own for image in range(piece.first, piece.first + piece.count)]
    assert taken == list(range(batch))
    assert len(pieces) == count
    assert max(shares) - min(shares) <= 1
    assert all(piece.count <= images for own in pieces for piece in own)


@given(requests=sizes, count=sizes, width=st.integers(1, 8), lanes=st.integers(1, 64))
def test_teams_fit_into_fewer_cores(requests: int, count: int, width: int, lanes: int) -> None:
    teams = Teams(requests, count, 2)
    found = for_cores(teams, requests * count * width, lanes)
    assert found.requests * found.count * min(found.lanes(lanes), width) <= max(lanes, 1)
    assert found.images == 2
    assert for_cores(teams, requests * count * width, requests * count * width) in (teams, Teams(1, count, 2))


def two_lanes(images: int) -> ExecutionPlan:
    """Two lanes: each reads a half of the input into the arena, and then what the other has written there."""
    nbytes = 8 * images
    halves = [View("x", "float32", (images, 1), offset=4 * images * lane, nbytes=4 * images) for lane in (0, 1)]
    parts = [replace(view, buffer="a") for view in halves]
    results = [replace(view, buffer="y") for view in halves]
    lanes = tuple(
        (
            PlanTask(f"half {lane}", 0, (halves[lane],), (parts[lane],)),
            PlanTask(f"other {lane}", 1, (parts[1 - lane],), (results[lane],), (Wait(1 - lane, 1),)),
        )
        for lane in (0, 1)
    )
    whole = View("x", "float32", (images, 2), nbytes=nbytes)
    buffers = (
        Buffer("x", MemorySpace.INPUT, nbytes),
        Buffer("a", MemorySpace.ARENA, nbytes),
        Buffer("y", MemorySpace.OUTPUT, nbytes),
    )
    return ExecutionPlan(lanes, buffers, nbytes, outputs=(replace(whole, buffer="y"),), inputs=(whole,))


def composed(teams: Teams, batch: int) -> ExecutionPlan:
    shares = [pieces for pieces in teams.pieces(batch) if pieces]
    counts = {piece.count for pieces in shares for piece in pieces}
    return in_teams({count: TeamPlan(two_lanes(count), 2 * count) for count in counts}, shares, frozenset("x"))


@given(batch=st.integers(1, 9), count=st.integers(1, 4), images=st.integers(1, 4))
def test_composed_plan_passes_the_check(batch: int, count: int, images: int) -> None:
    plan = composed(Teams(1, count, images), batch)
    check(plan)
    assert [view.shape for view in (*plan.inputs, *plan.outputs)] == [(batch, 2)] * 2
    assert len(plan.lanes) == 2 * min(count, batch)


def test_without_the_wait_between_pieces_the_check_fails() -> None:
    plan = composed(Teams(1, 1, 1), 2)
    first, second = plan.lanes
    careless = replace(plan, lanes=(first, (*second[:2], replace(second[2], waits=()), second[3])))
    check(plan)
    with pytest.raises(HazardError):
        check(careless)


def test_teams_share_no_arena_bytes_and_never_wait_for_each_other() -> None:
    plan = composed(Teams(1, 3, 2), 6)
    parts = sorted((each.offset, each.offset + each.nbytes) for each in plan.buffers if each.space is MemorySpace.ARENA)
    assert len(parts) == 3
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(parts))
    assert not any(
        wait.lane // 2 != lane // 2 for lane, tasks in enumerate(plan.lanes) for t in tasks for wait in t.waits
    )


def test_each_piece_uses_the_kernels_of_its_size() -> None:
    plan = composed(Teams(1, 1, 2), 3)
    assert [task.kernel for task in plan.lanes[0]] == [4, 5, 2, 3]


def test_an_output_may_have_the_name_of_an_internal_buffer() -> None:
    plan = two_lanes(1)
    buffers = tuple(replace(each, name="a#0.1") if each.name == "y" else each for each in plan.buffers)
    lanes = tuple(
        (first, replace(then, writes=tuple(replace(view, buffer="a#0.1") for view in then.writes)))
        for first, then in plan.lanes
    )
    outputs = (replace(plan.outputs[0], buffer="a#0.1"),)
    named = replace(plan, buffers=buffers, lanes=lanes, outputs=outputs)
    check(in_teams({1: TeamPlan(named)}, Teams(1, 2, 1).pieces(4), frozenset("x")))


def test_tensors_of_unknown_size_are_refused() -> None:
    plan = two_lanes(1)
    dynamic = replace(plan, buffers=(*plan.buffers, Buffer("found", MemorySpace.DYNAMIC, 0)))
    with pytest.raises(UsageError, match="'found'"):
        in_teams({1: TeamPlan(dynamic)}, Teams(1, 1, 1).pieces(2), frozenset("x"))
