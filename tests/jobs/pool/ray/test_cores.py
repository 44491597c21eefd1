"""`--cluster local:N` divides the processors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.pool.ray.places import divided, local_places
from iosched.models.errors import UsageError
from iosched.runtime import cores


def pairs(first: int) -> Callable[[int], set[int]]:
    """Processors `n` and `n + first` share a physical core."""
    return lambda cpu: {cpu % first, cpu % first + first}


def test_each_worker_has_its_own_processors() -> None:
    places = divided(2, None, range(8), 8, lambda cpu: {cpu})
    assert [place.cores for place in places] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {(place.device, place.count, place.threads) for place in places} == {("cpu", 1, 4)}
    assert len({place.node for place in places}) == 1


def test_the_two_processors_of_a_core_stay_together() -> None:
    assert [place.cores for place in divided(2, None, range(8), 8, pairs(4))] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [place.cores for place in divided(2, 1, (0, 1, 4, 5), 4, pairs(4))] == [(0, 4), (1, 5)]


def test_a_quota_limits_the_threads_and_not_the_processors() -> None:
    places = divided(2, None, range(16), 5, lambda cpu: {cpu})
    assert [(place.threads, len(place.cores)) for place in places] == [(2, 8), (2, 8)]


@pytest.mark.parametrize(
    ("workers", "threads", "words"),
    [
        (3, None, "local:3 with one thread each needs 3 cores, and this process may use 2: take fewer workers"),
        (2, 2, "local:2 with 2 threads each needs 4 cores, and this process may use 2: take fewer workers or fewer"),
        (3, 1, "local:3 with 1 thread each needs 3 cores"),
    ],
)
def test_more_threads_than_processors_are_refused(workers: int, threads: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        divided(workers, threads, (0, 1), 2, lambda cpu: {cpu})


def test_local_workers_share_the_allowed_processors_and_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5})
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    assert [place.cores for place in local_places(2, None)] == [(3,), (5,)]
    monkeypatch.setattr(cores, "cpu_quota", lambda: 1.5)
    with pytest.raises(UsageError, match="may use 1:"):
        local_places(2, None)


@given(st.integers(1, 9), st.sets(st.integers(0, 63), min_size=1), st.integers(1, 64), st.none() | st.integers(1, 9))
def test_workers_fit_or_are_refused(workers: int, cpus: set[int], quota: int, threads: int | None) -> None:
    most = min(quota, len(cpus))
    if workers * (threads or 1) > most:
        with pytest.raises(UsageError):
            divided(workers, threads, sorted(cpus), most, pairs(32))
        return
    places = divided(workers, threads, sorted(cpus), most, pairs(32))
    taken = [cpu for place in places for cpu in place.cores]
    assert len(places) == workers
    assert len(set(taken)) == len(taken)
    assert set(taken) <= cpus
    assert all(1 <= place.threads <= len(place.cores) for place in places)
    assert sum(place.threads for place in places) <= most
