"""When a changed stage is called free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from iosched.jobs.headroom import ratios
from iosched.profiler.devices.uncertainty import Interval
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.schedule import Stage, Strategy

NOW, CHANGED = (Stage(Strategy.CONCURRENT, ((name,),)) for name in ("now", "changed"))


class Turns:
    """Each round's speed of the machine, and by how much the changed stage is slower in each."""

    def __init__(self, slower: Sequence[float]) -> None:
        self.slower = slower

    def in_turn(self, stretches: Mapping[str, Sequence[Stage]]) -> Mapping[str, Measurement]:
        speeds = [1.0 + 0.3 * (place % 3) for place in range(len(self.slower))]
        taken = {"": speeds, "changed": [a * b for a, b in zip(speeds, self.slower, strict=True)]}
        return {name: summarize([10 * us for us in taken[name]]) for name in stretches if name in taken}


@pytest.mark.parametrize(
    ("slower", "is_free"),
    [
        ([1.0] * 21, True),
        ([0.9] * 21, True),  # faster
        ([1.02] * 21, False),  # a little slower, beyond any doubt
        ([0.99, 1.02, 1.0] * 7, True),
        ([0.8, 1.2, 1.0] * 7, False),  # too noisy to be called anything
    ],
)
def test_a_measured_change_is_free_if_it_is_not_slower_and_that_is_known(slower: list[float], is_free: bool) -> None:
    taken = ratios.measured(Turns(slower), NOW, {"changed": CHANGED, "not run": CHANGED})
    assert taken.keys() == {"changed"}
    found = taken["changed"]
    assert found.low <= found.value <= found.high
    both = Turns(slower).in_turn({"": (), "changed": ()})
    assert found.value == pytest.approx(both["changed"].median_us / both[""].median_us)
    assert found.is_free is is_free


@pytest.mark.parametrize(
    ("ratio", "is_free"),
    [
        (Interval(1.0, 1.0, 1.0), True),
        (Interval(0.9, 0.85, 0.95), True),
        (Interval(1.005, 0.9, 1.1), True),
        (Interval(1.005, 1.003, 1.007), False),  # known to be slower
        (Interval(1.02, 0.5, 2.0), False),  # slower by the model, however little it knows
    ],
)
def test_a_computed_change_is_free_if_the_model_neither_says_nor_knows_it_to_be_slower(
    ratio: Interval, is_free: bool
) -> None:
    class Known:
        def ratio(self, stages: Sequence[Stage], others: Sequence[Stage]) -> Interval:
            assert (stages, others) == ([CHANGED], [NOW])
            return ratio

        def latency_us(self, stages: Sequence[Stage]) -> Interval:
            raise AssertionError

    found = ratios.computed(Known(), NOW, {"changed": CHANGED})["changed"]
    assert (found.value, found.low, found.high) == (ratio.value, ratio.low, ratio.high)
    assert found.is_free is is_free
