"""Teams share a batch evenly, and the plan that is composed for them passes the check only as it is composed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.errors import UsageError
from iosched.runtime.cpu.team_model import TeamPlan, in_teams
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.plan import Buffer, ExecutionPlan, Space, Task, View, Wait
from iosched.scheduler.teams import Teams, fitting

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
def test_on_other_cores_no_more_of_them_are_used_than_there_are(
    requests: int, count: int, width: int, lanes: int
) -> None:
    teams = Teams(requests, count, 2)
    found = fitting(teams, requests * count * width, lanes)
    assert found.requests * found.count * min(found.lanes(lanes), width) <= max(lanes, 1)
    assert found.images == 2
    assert fitting(teams, requests * count * width, requests * count * width) in (teams, Teams(1, count, 2))


def two_lanes(images: int) -> ExecutionPlan:
    """Two lanes: each reads a half of the input into the arena, and then what the other has written there."""
    nbytes = 8 * images
    halves = [View("x", "float32", (images, 1), offset=4 * images * lane, nbytes=4 * images) for lane in (0, 1)]
    parts = [replace(view, buffer="a") for view in halves]
    results = [replace(view, buffer="y") for view in halves]
    lanes = tuple(
        (
            Task(f"half {lane}", 0, (halves[lane],), (parts[lane],)),
            Task(f"other {lane}", 1, (parts[1 - lane],), (results[lane],), (Wait(1 - lane, 1),)),
        )
        for lane in (0, 1)
    )
    whole = View("x", "float32", (images, 2), nbytes=nbytes)
    buffers = (
        Buffer("x", Space.INPUT, nbytes),
        Buffer("a", Space.ARENA, nbytes),
        Buffer("y", Space.OUTPUT, nbytes),
    )
    return ExecutionPlan(lanes, buffers, nbytes, outputs=(replace(whole, buffer="y"),), inputs=(whole,))


def composed(teams: Teams, batch: int) -> ExecutionPlan:
    shares = [pieces for pieces in teams.pieces(batch) if pieces]
    counts = {piece.count for pieces in shares for piece in pieces}
    return in_teams({count: TeamPlan(two_lanes(count), 2 * count) for count in counts}, shares, frozenset("x"))


@given(batch=st.integers(1, 9), count=st.integers(1, 4), images=st.integers(1, 4))
def test_what_is_composed_passes_the_check(batch: int, count: int, images: int) -> None:
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


def test_teams_have_no_byte_of_the_arena_in_common() -> None:
    plan = composed(Teams(1, 3, 2), 6)
    parts = sorted((each.offset, each.offset + each.nbytes) for each in plan.buffers if each.space is Space.ARENA)
    assert len(parts) == 3
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(parts))
    assert not any(
        wait.lane // 2 != lane // 2 for lane, tasks in enumerate(plan.lanes) for t in tasks for wait in t.waits
    )


def test_kernels_are_those_of_the_piece_s_own_size() -> None:
    plan = composed(Teams(1, 1, 2), 3)
    assert [task.kernel for task in plan.lanes[0]] == [4, 5, 2, 3]


def test_an_array_may_be_called_as_a_buffer_would_be() -> None:
    plan = two_lanes(1)
    buffers = tuple(replace(each, name="a#0.1") if each.name == "y" else each for each in plan.buffers)
    lanes = tuple(
        (first, replace(then, writes=tuple(replace(view, buffer="a#0.1") for view in then.writes)))
        for first, then in plan.lanes
    )
    outputs = (replace(plan.outputs[0], buffer="a#0.1"),)
    named = replace(plan, buffers=buffers, lanes=lanes, outputs=outputs)
    check(in_teams({1: TeamPlan(named)}, Teams(1, 2, 1).pieces(4), frozenset("x")))


def test_what_has_no_known_size_is_refused() -> None:
    plan = two_lanes(1)
    dynamic = replace(plan, buffers=(*plan.buffers, Buffer("found", Space.DYNAMIC, 0)))
    with pytest.raises(UsageError, match="'found'"):
        in_teams({1: TeamPlan(dynamic)}, Teams(1, 1, 1).pieces(2), frozenset("x"))
