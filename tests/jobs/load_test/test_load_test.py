"""All alternatives get the same requests, in interleaved segments, after their outputs are checked."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from small_models import chains

from iosched.jobs.load_test import load_test as job
from iosched.jobs.load_test.alternatives import Served
from iosched.jobs.load_test.arrivals import Arrival, Segment
from iosched.jobs.load_test.load_test import LoadSettings, load_test
from iosched.jobs.load_test.sender import Answer, Submit
from iosched.models.errors import DeviceError, MismatchError
from iosched.models.model import Model

RATES = {"one": 50.0, "two": 20.0}
Sent = list[tuple[str, Segment]]


class Fake:
    """Answers at once; `name` begins with its fault."""

    def __init__(self, name: str, served: Mapping[str, Served]) -> None:
        self.name, self.served, self.is_open = name, served, True

    def submit(self, model: str) -> Future[Any]:
        answer: Future[Any] = Future()
        outputs = self.served[model].expected
        wrong = self.name.startswith("wrong")
        answer.set_result({name: np.asarray(each) + wrong for name, each in outputs.items()})
        return answer

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def models() -> dict[str, Model]:
    return dict(zip(RATES, chains(2).values(), strict=True))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    found: list[Fake] = []

    def opener(name: str) -> Any:
        def opens(served: Mapping[str, Served], threads: int) -> Fake:
            if name.startswith("missing"):
                raise DeviceError("not installed")
            found.append(Fake(name, served))
            return found[-1]

        return opens

    names = ("a", "b", "wrong", "missing")
    monkeypatch.setattr(job, "OPENERS", {name: opener(name) for name in names} | {"iosched": opener("wrong iosched")})
    monkeypatch.setattr(job, "wait_until_idle", lambda: None)
    return found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Replaces sending: alternative a answers in 1 ms, all others answer every second request after 2 ms."""
    found: Sent = []

    def send(submit: Submit, segment: Segment, timeout_s: float) -> tuple[Answer, ...]:
        alternative = getattr(submit, "__self__")  # noqa: B009 - of a method
        assert isinstance(alternative, Fake)
        assert alternative.is_open
        found.append((alternative.name, segment))
        counted = [each for each in segment.arrivals if each.at_s >= 0]
        if alternative.name == "a":
            return tuple(Answer(each.model, 1e3, 1.0) for each in counted)
        halves = (("", 2e3), ("full", float("inf")))
        return tuple(Answer(each.model, halves[k % 2][1], 50.0, halves[k % 2][0]) for k, each in enumerate(counted))

    monkeypatch.setattr(job, "send", send)
    return found


def test_segments_are_interleaved_and_equal(models: dict[str, Model], opened: list[Fake], sent: Sent) -> None:
    result = load_test(models, LoadSettings(RATES, duration_s=6.0, names=("a", "b"), threads=1))
    assert [name for name, _ in sent] == ["a", "b"] * 3
    assert [segment for name, segment in sent if name == "a"] == [segment for name, segment in sent if name == "b"]
    assert result.seconds == pytest.approx(6.0)
    assert [(row.model, row.name) for row in result.rows] == [("one", "a"), ("one", "b"), ("two", "a"), ("two", "b")]
    assert [row.requests for row in result.first] == [row.requests for row in result.rows if row.name == "b"]
    assert not any(each.is_open for each in opened)


def test_an_alternative_with_other_outputs_is_not_measured(
    models: dict[str, Model], opened: list[Fake], sent: Sent
) -> None:
    result = load_test(models, LoadSettings(RATES, duration_s=1.0, names=("a", "wrong", "missing"), threads=1))
    assert {name for name, _ in sent} == {"a"}
    assert result.missing["missing"] == "not installed"
    assert "wrong computes other outputs of one" in result.missing["wrong"]
    assert not any(each.is_open for each in opened)


def test_other_outputs_of_iosched_are_an_error(models: dict[str, Model], opened: list[Fake], sent: Sent) -> None:
    with pytest.raises(MismatchError, match="iosched computes other outputs"):
        load_test(models, LoadSettings(RATES, duration_s=1.0, names=("a", "iosched"), threads=1))
    assert not any(each.is_open for each in opened)
    with pytest.raises(DeviceError, match="not installed"):
        load_test(models, LoadSettings(RATES, duration_s=1.0, names=("missing",), threads=1))


def test_deadlines_are_given_or_follow_from_the_latency_alone(
    models: dict[str, Model], opened: list[Fake], sent: Sent
) -> None:
    settings = LoadSettings(RATES, duration_s=1.0, deadlines_s={"one": 0.25}, names=("a",), threads=1)
    result = load_test(models, settings)
    assert [row.deadline_us for row in result.rows] == [2.5e5, pytest.approx(5 * result.lone_us["two"])]


def test_planned_arrivals_are_sent_once_each(models: dict[str, Model], opened: list[Fake], sent: Sent) -> None:
    planned = tuple(Arrival(k / 10, "one") for k in range(50))
    result = load_test(models, LoadSettings({}, planned, names=("a",), threads=1))
    assert [row.requests for row in result.rows] == [50, 0]
    assert result.first[0].rate_per_s == pytest.approx(50 / result.seconds)


def test_by_default_a_load_test_ends_within_a_minute(
    models: dict[str, Model], opened: list[Fake], sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])
    of_job = job.send

    def slow(submit: Submit, segment: Segment, timeout_s: float) -> tuple[Answer, ...]:
        now[0] += 10.0
        return of_job(submit, segment, timeout_s)

    monkeypatch.setattr(job, "send", slow)
    load_test(models, LoadSettings(RATES, names=("a", "b"), threads=1))
    assert (now[0], [name for name, _ in sent]) == (60.0, ["a", "b"] * 3)
    sent.clear()
    load_test(models, LoadSettings(RATES, duration_s=20.0, names=("a", "b"), threads=1))
    assert [name for name, _ in sent] == ["a", "b"] * 10


def test_notes_report_counts_lag_and_missing_answers(models: dict[str, Model], opened: list[Fake], sent: Sent) -> None:
    result = load_test(models, LoadSettings(RATES, duration_s=2.0, names=("a", "b"), threads=1))
    one = result.first[0].requests
    assert f"{one} requests of one are too few for p99, which takes 368: use --duration" in result.notes[0]
    assert result.lag_us == {"a": 1.0, "b": 50.0}
    assert set(result.notes[-2:]) == {
        f"b did not answer {row.unanswered} of {row.requests} requests of {row.model}: full."
        for row in result.rows
        if row.name == "b"
    }
    assert load_test(models, LoadSettings(RATES, duration_s=60.0, names=("a",), threads=1)).notes == ()
