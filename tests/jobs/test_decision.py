"""A candidate ships only if it is faster than plain onnxruntime beyond the noise."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.decision import Decision, decide
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Interval, Measurement, summarize

WORDS = {"a": "the schedule found", "b": "the other", "plain": "plain onnxruntime"}
NOISE = (1.0, 1.05, 0.97, 1.02, 0.95, 1.01, 1.04, 0.99, 0.96, 1.03, 0.98)


def around(latency_us: float, shift: int = 0) -> Measurement:
    """Samples that scatter by some percent, in another order for each `shift`."""
    return summarize([latency_us * NOISE[(index + shift) % len(NOISE)] for index in range(len(NOISE))])


def chosen(plain: float, a: float, b: float) -> Decision:
    return decide({"plain": around(plain), "a": around(a, 3), "b": around(b, 7)}, "plain", ("a", "b"))


@pytest.mark.parametrize(
    ("plain", "a", "b", "ships"),
    [
        (100.0, 80.0, 90.0, "a"),
        (100.0, 90.0, 70.0, "b"),
        (100.0, 101.0, 80.0, "b"),
        (100.0, 99.0, 98.0, "plain"),  # a smaller median alone ships nothing
        (100.0, 140.0, 130.0, "plain"),
        (100.0, 80.0, 79.0, "a"),  # both are faster and do not differ: the first ships
    ],
)
def test_a_candidate_ships_if_it_is_faster_beyond_the_noise(plain: float, a: float, b: float, ships: str) -> None:
    assert chosen(plain, a, b).chosen == ships


@given(st.lists(st.tuples(*[st.floats(1.0, 2.0)] * 3), min_size=1, max_size=20))
def test_candidates_whose_interval_reaches_one_do_not_ship(rounds: Sequence[tuple[float, float, float]]) -> None:
    measured = {
        name: summarize(samples) for name, samples in zip(("plain", "a", "b"), zip(*rounds, strict=True), strict=True)
    }
    found = decide(measured, "plain", ("a", "b"))
    against = {name: compare(measured["plain"], measured[name]) for name in ("a", "b")}
    faster = [name for name, each in against.items() if each is not None and each.low > 1]
    assert (found.chosen == "plain") == (not faster)
    assert found.chosen in (*faster, "plain")
    if found.chosen == "b" and "a" in faster:
        between = compare(measured["a"], measured["b"])
        assert between is not None
        assert between.low > 1
    ratio = found.ratio()
    assert (ratio is None) == (len(rounds) < LEAST_SAMPLES)
    assert ratio is None or (ratio.low > 1) == (found.chosen != "plain")


def test_equally_fast_candidates_rarely_ship() -> None:
    """Two candidates, each of which ships by chance in 2.5 % of the cases: together in about one of thirty."""
    rng = random.Random(0)
    shipped = 0
    for _ in range(400):
        measured = {name: summarize([rng.lognormvariate(0, 0.05) for _ in range(15)]) for name in ("plain", "a", "b")}
        shipped += decide(measured, "plain", ("a", "b")).chosen != "plain"
    assert shipped <= 400 * 0.05


def test_too_few_rounds_decide_nothing() -> None:
    few = {name: summarize([latency] * (LEAST_SAMPLES - 1)) for name, latency in (("plain", 9.0), ("a", 1.0))}
    found = decide(few, "plain", ("a",))
    assert (found.chosen, found.ratio()) == ("plain", None)
    assert found.reason(WORDS) == "too few runs to tell whether the schedule found is faster than plain onnxruntime"


def test_the_ratio_is_taken_within_rounds_and_names_its_terms() -> None:
    """The machine slows down while both are measured: the quotient of the medians would be 1.2."""
    slow = (1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0)
    measured = {"plain": summarize([110 * x for x in slow]), "a": summarize([100 * x for x in slow])}
    found = decide(measured, "plain", ("a",))
    assert found.ratio() == Interval(*[pytest.approx(1.1)] * 3, "plain/a")
    assert found.reason(WORDS) == "the schedule found runs at 1.100x (1.100 to 1.100) the speed of plain onnxruntime"


def test_the_reason_distinguishes_slower_equal_and_undecided() -> None:
    slower = chosen(100.0, 140.0, 130.0).reason(WORDS)
    assert slower.startswith("plain onnxruntime is faster: the schedule found runs at 0.")
    equal = {"plain": summarize([100.0] * 9), "a": summarize([99.0, 101.0, 100.0] * 3)}
    reason = decide(equal, "plain", ("a",)).reason(WORDS)
    assert reason.startswith("no difference found: the schedule found runs at 1.000x")
    same = chosen(100.0, 100.0, 99.0)
    assert same.reason(WORDS).startswith("undecided: the schedule found runs at ")
    ratio = same.ratio()
    assert ratio is not None
    assert ratio.low < 1 < ratio.high


def test_candidates_that_take_no_time_are_not_compared() -> None:
    nothing = summarize([0.0] * 9)
    found = decide({"plain": nothing, "a": nothing}, "plain", ("a",))
    assert (found.chosen, found.ratio()) == ("plain", None)
    assert "takes no measurable time" in found.reason(WORDS)


def test_a_library_that_beats_our_schedule_ships_even_if_undecided_against_onnxruntime() -> None:
    """Our schedule beats plain onnxruntime in eight of nine rounds, the library beats ours in another eight."""
    plain, ours, openvino = [1.2] * 9, [1.1] * 9, [1.0] * 9
    plain[0], openvino[1] = 0.1, 10.0
    measured = {"plain": summarize(plain), "a": summarize(ours), "openvino": summarize(openvino)}
    assert decide(measured, "plain", ("a",)).chosen == "a"
    assert decide(measured, "plain", ("a",), ("openvino",)).chosen == "openvino"
