"""Stretches of blocks that run as sessions: the best cut where savings add up, and never a worse one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import pytest
from by_definition import graph_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph
from iosched.scheduler.checks import check_operators
from iosched.scheduler.questions import Question
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy, total_us
from iosched.scheduler.stretches import session_of, with_sessions

Latency = Callable[[int, int], float]


@dataclass
class Cost:
    """Blocks of two operators each; the session of blocks `start` to `stop - 1` takes `latency_us(start, stop)`."""

    latency_us: Latency
    again_us: Latency | None = None
    runs_sessions: bool = True
    asked: list[tuple[int, int]] = field(default_factory=list)

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(_place(stage))
        return self.latency_us(*self.asked[-1])

    def lower_bound_us(self, stage: Stage) -> float:
        return 0.0


class Doubted(Cost):
    def remeasure(self, stage: Stage) -> float:
        assert self.again_us is not None
        return self.again_us(*_place(stage))


def _place(stage: Stage) -> tuple[int, int]:
    numbers = sorted(map(int, stage.operators))
    assert stage.strategy is Strategy.SESSION
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    return numbers[0] // 2, numbers[-1] // 2 + 1


def chain(n: int) -> ComputationGraph:
    return graph_of(2 * n, list(pairwise(range(2 * n))))


def blocks_of(own_us: Sequence[float]) -> list[Block]:
    return [
        Block(i, (Stage(Strategy.CONCURRENT, ((str(2 * i), str(2 * i + 1)),), predicted_us=us),), optimal=True)
        for i, us in enumerate(own_us)
    ]


def best_cut_us(own_us: Sequence[float], latency_us: Latency) -> float:
    """Over all ways to cut the blocks, by brute force."""
    n, found = len(own_us), []
    for count in range(n):
        for inner in combinations(range(1, n), count):
            parts = pairwise((0, *inner, n))
            found.append(sum(min(latency_us(a, b), own_us[a]) if b - a == 1 else latency_us(a, b) for a, b in parts))
    return min(found)


def total(blocks: Sequence[Block]) -> float:
    found = total_us(stage for block in blocks for stage in block.stages)
    assert found is not None
    return found


times = st.integers(1, 1000).map(float)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=7), st.integers(0, 50))
def test_the_best_cut_is_found_where_every_join_saves_the_same(rows: list[tuple[float, float]], saved: int) -> None:
    own, alone = zip(*rows, strict=True)

    def latency_us(start: int, stop: int) -> float:
        return sum(alone[start:stop]) + 1000 - saved * (stop - start - 1)

    cost = Cost(latency_us)
    found = with_sessions(chain(len(own)), cost, blocks_of(own))
    assert total(found.blocks) == pytest.approx(best_cut_us(own, latency_us))
    assert found.measured == len(cost.asked) == len(set(cost.asked)) <= 3 * len(own)


@given(st.lists(times, min_size=1, max_size=7), st.data(), st.booleans())
def test_any_latencies_give_a_legal_schedule_that_is_not_slower(
    own: list[float], data: st.DataObject, doubts: bool
) -> None:
    pairs = list(combinations(range(len(own) + 1), 2))
    drawn = st.lists(times, min_size=len(pairs), max_size=len(pairs))
    latency, again = (dict(zip(pairs, data.draw(drawn), strict=True)) for _ in range(2))
    made = Doubted if doubts else Cost
    cost = made(lambda *place: latency[place], lambda *place: again[place])
    graph = chain(len(own))
    found = with_sessions(graph, cost, blocks_of(own))

    check_operators(Schedule(found.blocks), graph)
    assert [block.index for block in found.blocks] == list(range(len(found.blocks)))
    assert total(found.blocks) <= sum(own)
    assert found.measured + found.remeasured <= (6 if doubts else 3) * len(own)
    for block in found.blocks:
        for stage in block.stages:
            if stage.strategy is Strategy.SESSION:
                assert not block.optimal
                assert stage.predicted_us == (again if doubts else latency)[_place(stage)]


def test_a_stretch_that_was_fast_by_chance_is_not_taken() -> None:
    own = [10.0, 10.0, 10.0]
    cost = Doubted(lambda start, stop: 9.0 * (stop - start), lambda start, stop: 11.0 * (stop - start))
    found = with_sessions(chain(3), cost, blocks_of(own))
    assert found.blocks == tuple(blocks_of(own))
    assert not found.has_sessions
    assert found.remeasured > 0


def test_only_the_stretch_where_sessions_are_faster_becomes_one() -> None:
    own, alone = [10.0, 50.0, 50.0, 10.0], [30.0, 30.0, 30.0, 30.0]
    cost = Cost(lambda start, stop: sum(alone[start:stop]) - 5.0 * (stop - start - 1))
    found = with_sessions(chain(4), cost, blocks_of(own))
    kinds = [[stage.strategy for stage in block.stages] for block in found.blocks]
    assert kinds == [[Strategy.CONCURRENT], [Strategy.SESSION], [Strategy.CONCURRENT]]
    assert total(found.blocks) == 10 + 55 + 10
    assert found.has_sessions


def test_what_a_device_cannot_do_is_not_asked_of_it() -> None:
    for cost in (Cost(lambda start, stop: 0.0, runs_sessions=False), Cost(lambda start, stop: float("inf"))):
        found = with_sessions(chain(3), cost, blocks_of([1.0, 2.0, 3.0]))
        assert found.blocks == tuple(blocks_of([1.0, 2.0, 3.0]))
    unknown = [Block(0, (Stage(Strategy.CONCURRENT, (("0", "1"),)),))]
    assert with_sessions(chain(1), Cost(lambda start, stop: 0.0), unknown).blocks == tuple(unknown)


def test_once_time_is_over_what_is_known_decides() -> None:
    left = iter([False, False, True])
    cost = Cost(lambda start, stop: 1.0 * (stop - start))
    found = with_sessions(chain(3), cost, blocks_of([2.0, 2.0, 2.0]), is_over=lambda: next(left))
    assert cost.asked == [(0, 3), (0, 1)]
    assert total(found.blocks) == 3.0


def test_groups_of_a_session_are_its_connected_parts() -> None:
    graph = graph_of(5, [(0, 2), (1, 3), (3, 4)])
    assert session_of(graph, ("0", "1", "2", "3")) == Stage(Strategy.SESSION, (("0", "2"), ("1", "3")))


def test_sessions_that_are_nearly_as_fast_are_in_the_favoured_cut_alone() -> None:
    own = [10.0, 10.0]
    found = with_sessions(chain(2), Cost(lambda start, stop: 10.5 * (stop - start)), blocks_of(own))
    assert found.blocks == tuple(blocks_of(own))
    assert total(found.favoured) == 21.0
    slower = with_sessions(chain(2), Cost(lambda start, stop: 11.5 * (stop - start)), blocks_of(own))
    assert slower.favoured == slower.blocks == tuple(blocks_of(own))


@pytest.mark.parametrize(("low_us", "asked"), [(19.0, [(0, 2), (0, 2), (0, 1), (1, 2)]), (20.0, [(0, 2)])])
def test_a_disturbed_session_is_measured_again_if_it_may_be_faster_than_its_blocks(
    low_us: float, asked: list[tuple[int, int]]
) -> None:
    class Disturbed(Cost):
        tries = 0

        def disturbed_low_us(self, stage: Stage) -> float | None:
            return low_us if self.tries == 0 else None

        def try_again(self) -> None:
            self.tries += 1

    cost = Disturbed(lambda start, stop: 5.0 * (stop - start) if cost.tries else 500.0)
    found = with_sessions(chain(2), cost, blocks_of([10.0, 10.0]))
    assert cost.asked[: len(asked)] == asked
    assert cost.asked.count((0, 2)) == asked.count((0, 2))
    assert total(found.blocks) == (10.0 if low_us < 20 else 20.0)


@pytest.mark.parametrize("n", [1, 5])
def test_what_is_measured_in_any_case_is_handed_over_as_one_list(n: int) -> None:
    class Ahead(Cost):
        def prefetch(self, questions: Sequence[Question]) -> None:
            assert not self.asked
            handed.append([_place(question.stage) for question in questions])

    def latency_us(start: int, stop: int) -> float:
        return 30.0 * (stop - start) - 5 * (stop - start - 1)

    handed: list[list[tuple[int, int]]] = []
    plain, cost = Cost(latency_us), Ahead(latency_us)
    blocks = blocks_of([40.0] * n)
    assert with_sessions(chain(n), cost, blocks) == with_sessions(chain(n), plain, blocks)
    assert cost.asked == plain.asked
    assert handed == [list(dict.fromkeys([(0, n), *((index, index + 1) for index in range(n))]))]

    with_sessions(chain(n), Ahead(latency_us), blocks, is_over=lambda: True)
    assert len(handed) == 1
    assert with_sessions(chain(n), plain, blocks, ahead=Ahead(latency_us)) == with_sessions(chain(n), plain, blocks)
    assert handed[0] == handed[1]
