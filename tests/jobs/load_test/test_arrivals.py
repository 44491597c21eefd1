"""Planned arrivals: seeded, at their rates, and cut into segments that warm up with the previous arrivals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.load_test.arrivals import Arrival, divided, parse_arrivals, poisson
from iosched.models.errors import UsageError

RATES = {"a": 40.0, "b": 10.0}


def test_poisson_arrivals_have_their_rates_and_exponential_gaps() -> None:
    found = poisson(RATES, -1.0, 999.0, seed=3)
    assert list(found) == sorted(found)
    for model, rate in RATES.items():
        times = [each.at_s for each in found if each.model == model]
        gaps = [after - before for before, after in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        assert len(times) == pytest.approx(1000 * rate, rel=0.05)
        assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)
        assert all(-1 <= time < 999 for time in times)


def test_arrivals_depend_on_the_seed_and_the_model() -> None:
    assert poisson(RATES, 0, 10, seed=1) == poisson(RATES, 0, 10, seed=1)
    assert poisson(RATES, 0, 10, seed=1) != poisson(RATES, 0, 10, seed=2)
    equal = poisson({"a": 5.0, "b": 5.0}, 0, 10, seed=1)
    assert [each.at_s for each in equal if each.model == "a"] != [each.at_s for each in equal if each.model == "b"]


@given(
    st.lists(st.tuples(st.floats(-1, 10), st.sampled_from("ab")), max_size=30),
    st.integers(1, 5),
    st.floats(0.1, 9.9),
    st.floats(0, 1),
)
def test_each_arrival_counts_once_and_warm_up_is_limited(
    pairs: list[tuple[float, str]], count: int, duration_s: float, warm_up_s: float
) -> None:
    planned = sorted(Arrival(*pair) for pair in pairs)
    segments = divided(planned, duration_s, count, warm_up_s)
    assert sum(each.seconds for each in segments) == pytest.approx(duration_s)
    counted = [
        (round(index * duration_s / count + each.at_s, 6), each.model)
        for index, segment in enumerate(segments)
        for each in segment.arrivals
        if each.at_s >= 0
    ]
    wanted = [(round(each.at_s, 6), each.model) for each in planned if 0 <= each.at_s < duration_s]
    assert set(wanted) <= set(counted)
    assert len(counted) == len(wanted)
    assert all(-warm_up_s - 1e-9 <= each.at_s for segment in segments for each in segment.arrivals)


def test_a_file_has_times_and_names() -> None:
    text = "# trace\n0.5 b\n\n0.25 a  # first\n1e1 a\n"
    assert parse_arrivals(text, ["a", "b"], "f") == (Arrival(0.25, "a"), Arrival(0.5, "b"), Arrival(10.0, "a"))
    assert parse_arrivals("1\n2 only", ["only"], "f") == (Arrival(1.0, "only"), Arrival(2.0, "only"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "f has no arrivals"),
        ("0 a\nsoon a", "f, line 2: 'soon'"),
        ("-1 a", "f, line 1: '-1'"),
        ("nan a", "f, line 1: 'nan'"),
        ("1 c", "no model 'c'"),
        ("1", "no model ''"),
    ],
)
def test_an_invalid_file_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_arrivals(text, ["a", "b"], "f")
