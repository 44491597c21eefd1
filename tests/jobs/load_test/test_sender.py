"""The sender never waits for answers, and latencies count from the planned arrival."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread

import pytest

from iosched.jobs.load_test import sender
from iosched.jobs.load_test.arrivals import Arrival, Segment
from iosched.jobs.load_test.sender import send
from iosched.models.errors import ExecutionError


class FakeClock:
    """Time passes only by sleeping, or when the alternative says so."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.time_s = 100.0

    def perf_counter(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    monkeypatch.setattr(sender, "time", found := FakeClock())
    return found


class FakeServer:
    """Answers request k before the request `after[k]` is sent; negative: never."""

    def __init__(self, clock: FakeClock, after: Sequence[int] = (), submitting_s: float = 0.0) -> None:
        self.clock, self.after, self.submitting_s = clock, after, submitting_s
        self.sent_s: list[float] = []
        self.answers: list[Future[None]] = []

    def submit(self, model: str) -> Future[None]:
        if model == "full":
            raise RuntimeError("the queue is full")
        self.sent_s.append(self.clock.perf_counter())
        self.clock.time_s += self.submitting_s
        self.answers.append(Future())
        for number, after in enumerate(self.after):
            if after == len(self.answers) - 1:
                self.answers[number].set_result(None)
        return self.answers[-1]

    def close(self) -> None:
        pass


def at(*times: float, model: str = "a") -> Segment:
    return Segment(tuple(Arrival(time, model) for time in times), 10.0)


def test_requests_are_sent_on_time_even_if_none_is_answered(clock: FakeClock) -> None:
    server = FakeServer(clock)
    found = send(server.submit, at(-0.5, 0.0, 0.1, 3.0), 0.0)
    assert [after - server.sent_s[0] for after in server.sent_s] == pytest.approx([0.0, 0.5, 0.6, 3.5])
    assert [each.latency_us for each in found] == [math.inf] * 3
    assert {each.reason for each in found} == {"no answer in time"}
    assert all(answer.cancelled() for answer in server.answers)


def test_a_latency_counts_from_the_planned_arrival(clock: FakeClock) -> None:
    found = send(FakeServer(clock, after=(1, 1, 2), submitting_s=0.5).submit, at(0.0, 0.1, 2.0), 0.0)
    assert [each.lag_us for each in found] == pytest.approx([0.0, 4e5, 0.0], abs=1e-3)
    assert [each.latency_us for each in found] == pytest.approx([1e6, 9e5, 5e5])


def test_warm_up_is_sent_but_not_counted(clock: FakeClock) -> None:
    server = FakeServer(clock, after=(0, 1, 2))
    assert len(send(server.submit, at(-0.2, -0.1, 0.0), 0.0)) == 1
    assert len(server.answers) == 3


def test_refused_and_failed_requests_have_no_latency_and_a_reason(clock: FakeClock) -> None:
    assert [(each.latency_us, each.reason) for each in send(FakeServer(clock).submit, at(0.0, model="full"), 0.0)] == [
        (math.inf, "the queue is full")
    ]

    class Failing(FakeServer):
        def submit(self, model: str) -> Future[None]:
            answer = super().submit(model)
            answer.set_exception(ValueError("first line\nsecond line"))
            return answer

    (found,) = send(Failing(clock).submit, at(0.0), 0.0)
    assert (found.latency_us, found.reason) == (math.inf, "first line")


def test_a_run_that_has_started_is_waited_for(clock: FakeClock) -> None:

    class Running(FakeServer):
        def submit(self, model: str) -> Future[None]:
            answer = super().submit(model)
            answer.set_running_or_notify_cancel()
            Thread(target=answer.set_result, args=(None,)).start()
            return answer

    (found,) = send(Running(clock).submit, at(0.0), 0.0)
    assert (found.reason, math.isfinite(found.latency_us)) == ("", True)


def test_a_run_that_never_ends_is_an_error_and_enables_gc_again(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setattr(sender, "_LONGEST_RUN_S", 0.0)

    class Hanging(FakeServer):
        def submit(self, model: str) -> Future[None]:
            assert not gc.isenabled()
            answer = super().submit(model)
            answer.set_running_or_notify_cancel()
            return answer

    with pytest.raises(ExecutionError, match="not answered"):
        send(Hanging(clock).submit, at(0.0), 0.0)
    assert gc.isenabled()


def test_a_segment_without_arrivals_has_no_answers(clock: FakeClock) -> None:
    assert send(FakeServer(clock).submit, Segment((), 1.0), 0.0) == ()
