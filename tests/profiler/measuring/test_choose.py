"""The usual setting stays, unless another one is faster beyond the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from iosched.profiler.measuring import interleaved_models
from iosched.profiler.measuring.interleaved_models import fastest_setting, runs_to_choose
from iosched.runtime.executor import Candidate


@dataclass
class Scripted:
    """A setting whose latency depends on the turn."""

    latency_us: Callable[[int], float]
    turns: int = 0

    def time(self, repeats: int) -> tuple[float, ...]:
        self.turns += repeats == 1
        return (self.latency_us(self.turns),) * repeats


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved_models, "wait_until_idle", lambda: None)


def steady(latency_us: float) -> Scripted:
    return Scripted(lambda turn: latency_us)


def chosen(*settings: Scripted) -> int:
    return fastest_setting([Candidate(each.time) for each in settings])


@pytest.mark.parametrize(
    ("latencies_us", "place"),
    [((500.0,), 0), ((500.0, 500.0), 0), ((500.0, 490.0, 480.0), 2), ((500.0, 900.0, 499.0), 2)],
)
def test_of_steady_settings_the_fastest_is_chosen_and_of_equal_ones_the_usual(
    latencies_us: tuple[float, ...], place: int
) -> None:
    assert chosen(*map(steady, latencies_us)) == place


def test_one_that_is_faster_in_some_rounds_only_does_not_replace_the_usual() -> None:
    """Its median and its minimum are lower, but two rounds of nine say otherwise."""
    fast = Scripted(lambda turn: 520.0 if turn in (5, 9) else 480.0)
    assert chosen(steady(500.0), fast) == 0


def test_one_round_that_was_disturbed_does_not_hide_a_faster_one() -> None:
    fast = Scripted(lambda turn: 5000.0 if turn == 7 else 480.0)
    assert chosen(steady(500.0), fast) == 1


def test_what_is_clearly_slower_is_dropped_after_a_few_rounds_but_never_the_usual() -> None:
    usual, near, slow = steady(600.0), steady(500.0), steady(560.0)
    assert chosen(usual, near, slow) == 1
    assert usual.turns == near.turns > slow.turns
    assert usual.turns + near.turns + slow.turns == runs_to_choose(3)


def test_where_all_others_are_dropped_nothing_more_is_measured() -> None:
    usual, slow = steady(500.0), steady(800.0)
    assert chosen(usual, slow) == 0
    assert usual.turns == slow.turns
