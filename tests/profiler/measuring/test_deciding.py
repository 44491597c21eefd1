"""The fastest candidate, and the ones to measure next, by rounds of several sessions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.measuring.deciding import (
    ERROR,
    LEAST_ROUNDS,
    NARROWED,
    SampledRounds,
    Trial,
    lasting_interval,
    shares,
)
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.measuring.statistics import LEAST_SAMPLES

OURS = {"found": 0.5, "greedy": 0.5}
PLAIN = ("reference", "openvino")


def session(count: int, load: Interference = Interference(), **latency_us: float) -> SampledRounds:  # noqa: B008 - frozen
    samples_us = {name: (us,) * count for name, us in latency_us.items()}
    return SampledRounds(samples_us, samples_us, (load,) * count)


def trial(*sessions: SampledRounds) -> Trial:
    return Trial(sessions, OURS, PLAIN)


@pytest.mark.parametrize(
    ("found", "greedy", "reference", "openvino", "verdict", "chosen"),
    [
        (10.0, 20.0, 12.0, 30.0, "faster", "found"),
        (20.0, 10.0, 12.0, 30.0, "faster", "greedy"),
        (10.0, 20.0, 30.0, 9.0, "slower", "openvino"),
        (10.0, 20.0, 9.0, 30.0, "slower", "reference"),
        (10.0, 20.0, 10.0, 10.0, "equal", "reference"),
        (10.0, 20.0, 10.1, 9.0, "slower", "openvino"),
    ],
)
def test_a_schedule_ships_if_it_is_faster_than_every_baseline(
    found: float, greedy: float, reference: float, openvino: float, verdict: str, chosen: str
) -> None:
    rounds = session(20, found=found, greedy=greedy, reference=reference, openvino=openvino)
    assert (trial(rounds).verdict, trial(rounds).chosen) == (verdict, chosen)
    assert trial(rounds).is_settled


def test_a_few_rounds_say_nothing() -> None:
    rounds = session(LEAST_ROUNDS - 3, found=1.0, greedy=1.0, reference=2.0, openvino=2.0)
    assert trial(rounds).verdict == "undecided"
    assert trial(rounds).speedup("reference", "found") is None
    assert trial(rounds, rounds).verdict == "faster", "rounds of two days count together"


def test_days_of_different_speed_are_not_mixed_up() -> None:
    """On the second day everything takes three times as long, and there are more rounds."""
    fast, slow = session(12, found=10.0, reference=11.0), session(40, found=30.0, reference=33.0)
    found = Trial((fast, slow), {"found": 0.5}, ("reference",)).speedup("reference", "found")
    assert found is not None
    assert (found.low, found.value, found.high) == (1.1, 1.1, 1.1)


@given(st.lists(st.floats(0.5, 2.0), min_size=30, max_size=60), st.sampled_from([0.1, 0.25, 0.5]))
def test_the_ends_of_an_interval_share_the_error(ratios: list[float], share: float) -> None:
    """The low end, which may ship a schedule, has its share; the high end, which ships none, has the rest."""
    times = {"found": (1.0,) * len(ratios), "reference": tuple(ratios)}
    rounds = SampledRounds(times, times, (Interference(),) * len(ratios))
    found = Trial((rounds,), {"found": share}, ("reference",)).speedup("reference", "found")
    assert found is not None
    assert found.low == min(found.value, lasting_interval(ratios, ERROR * share)[0])
    assert found.high == max(found.value, lasting_interval(ratios, ERROR * (1 - share))[1])


def test_disturbed_rounds_do_not_count() -> None:
    disturbed = session(20, Interference(others=0.5), found=1.0, greedy=1.0, reference=2.0, openvino=2.0)
    assert trial(disturbed).verdict == "undecided"
    latency = trial(disturbed).measured("found")
    assert latency is not None
    assert latency.disturbed_by == ("other processes interfered with 20 of 20 rounds",)
    quiet = session(20, found=2.0, greedy=2.0, reference=1.0, openvino=1.0)
    assert trial(disturbed, quiet).verdict == "slower"
    assert (trial(disturbed).compared_s, trial(disturbed, quiet).compared_s) == (0.0, trial(quiet).compared_s)
    assert trial(quiet).compared_s > 0
    latency = trial(disturbed, quiet).measured("found")
    assert latency is not None
    assert (latency.samples_us, latency.disturbed_by) == ((2.0,) * 20, ())


def test_clearly_slower_candidates_are_no_longer_measured() -> None:
    rounds = session(LEAST_SAMPLES, found=10.0, greedy=20.0, reference=11.0, openvino=30.0)
    assert trial().wanted == (*OURS, *PLAIN)
    assert trial(rounds).wanted == ("found", "reference")


def test_after_some_rounds_only_the_best_of_our_schedules_remains() -> None:
    both = {"found": 10.0, "greedy": 10.1, "reference": 10.0, "openvino": 10.1}
    assert trial(session(NARROWED - 1, **both)).wanted == (*OURS, *PLAIN)
    assert trial(session(NARROWED, **both)).wanted == ("found", *PLAIN)


def test_a_leader_that_turns_out_slower_gives_way_to_another() -> None:
    """Rounds with the leader alone decide more about it than those it shared with others."""
    first = session(NARROWED, found=10.0, greedy=10.1, reference=11.0, openvino=30.0)
    later = session(20, found=12.0, reference=11.0)
    assert trial(first).wanted == ("found", "reference")
    assert trial(first, later).leader == "greedy"
    assert trial(first, later).wanted == ("greedy", "reference")


def test_a_schedule_found_later_is_compared_with_the_earlier_ones() -> None:
    decided = session(40, greedy=10.0, reference=20.0, openvino=20.0)
    assert "found" in trial(decided).wanted
    assert not trial(decided).is_settled
    assert trial(decided).chosen == "greedy"
    later = session(LEAST_ROUNDS, found=5.0, greedy=10.0, reference=20.0, openvino=20.0)
    assert trial(decided, later).chosen == "found"


@pytest.mark.parametrize(("greedy", "leader"), [(5.0, "greedy"), (30.0, "found")])
def test_schedules_without_common_rounds_are_compared_via_a_baseline(greedy: float, leader: str) -> None:
    """The machine was three times as slow on the second day."""
    first = session(20, greedy=greedy, reference=20.0, openvino=40.0)
    second = session(20, found=30.0, reference=60.0, openvino=120.0)
    assert (trial(first, second).leader, trial(first, second).chosen) == (leader, leader)


def test_without_openvino_a_schedule_is_chosen_if_it_beats_onnxruntime() -> None:
    rounds = session(LEAST_SAMPLES, found=10.0, greedy=20.0, reference=12.0, openvino=5.0)
    assert trial(rounds).chosen == "openvino"
    assert trial(rounds).chosen_without("openvino") == "found"
    slower = session(LEAST_SAMPLES, found=12.0, greedy=20.0, reference=10.0, openvino=5.0)
    assert trial(slower).chosen_without("openvino") == "reference"


def test_candidates_that_do_not_run_are_left_out() -> None:
    left = Trial((), OURS, PLAIN, ("beside",)).without({"greedy", "beside"})
    assert (left.ours, left.others, left.wanted) == ({"found": 0.5}, (), ("found", *PLAIN))


LATENCIES = st.dictionaries(st.sampled_from([*OURS, *PLAIN]), st.floats(1.0, 100.0), min_size=4, max_size=4)


@given(st.lists(LATENCIES, min_size=1, max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_a_verdict_depends_on_the_rounds_and_not_on_their_sessions(
    rounds: list[dict[str, float]], ends: list[bool]
) -> None:
    sessions: list[list[dict[str, float]]] = [[]]
    for each, ends_here in zip(rounds, ends, strict=False):
        sessions[-1].append(each)
        if ends_here:
            sessions.append([])
    divided = trial(*(_session(each) for each in sessions if each))
    whole = trial(_session(rounds))
    assert (divided.verdict, divided.chosen, divided.wanted) == (whole.verdict, whole.chosen, whole.wanted)


def _session(rounds: list[dict[str, float]]) -> SampledRounds:
    samples_us = {name: tuple(each[name] for each in rounds) for name in rounds[0]}
    return SampledRounds(samples_us, samples_us, (Interference(),) * len(rounds))


@given(st.integers(0, 50), st.integers(1, 3), st.integers(0, 3))
def test_error_shares_of_all_schedules_ever_found_sum_to_at_most_half(earlier: int, found: int, others: int) -> None:
    baselines = [f"baseline {number}" for number in range(others)]
    total = Fraction()
    for number in range(0, earlier + 1, found):
        given_to = shares([f"found {each}" for each in range(found)], number, baselines)
        assert given_to.keys() >= {*baselines}
        total += sum(Fraction(share) for name, share in given_to.items() if name not in baselines)
    assert total <= Fraction(1, 2) + Fraction(1, 10**9)
    assert sum(shares((), 0, baselines).values()) == pytest.approx(0.5 if others else 0.0)
