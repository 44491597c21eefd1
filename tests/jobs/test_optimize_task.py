"""`optimize` on a cluster finds the same as on this machine, and uses all workers of the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType

import pytest
from scripted import LATENCIES_US, fire, latencies_by_stage, script_models
from thread_cluster import ThreadPool, finish, thread_pool

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.optimize_task import optimize_on
from iosched.jobs.pool.messages import InterruptedTaskError
from iosched.models.errors import UsageError


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch)


def test_a_cluster_finds_the_same_as_this_machine(tmp_path: Path) -> None:
    settings = OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db")
    local = optimize(fire(), settings)
    with thread_pool(tmp_path / "other.db", cpu=3) as pool:
        found = optimize_on(pool, fire(), settings)
    assert replace(found.document, search=local.document.search) == local.document  # rounds ask for some more
    assert found.schedule == local.schedule
    assert (found.shipped, found.shipped_us) == (local.shipped, local.shipped_us)
    assert len(pool.packets) > 3
    again = optimize(fire(), replace(settings, profile_db=tmp_path / "other.db"))
    assert (again.measurements, again.schedule) == (0, local.schedule)


def test_a_single_worker_sends_no_packets_to_others(tmp_path: Path) -> None:
    with thread_pool(cpu=1) as pool:
        optimize_on(pool, fire(), OptimizeSettings())
    assert pool.packets == []


def test_auto_is_a_gpu_of_the_cluster_if_there_is_one() -> None:
    with thread_pool(cpu=1, v100=1) as pool:
        optimize_on(pool, fire(), OptimizeSettings(strategy="sequential"))
        optimize_on(pool, fire(), OptimizeSettings(device="CPU", strategy="sequential"))
    assert [task.device for task in pool.tasks] == ["v100", "cpu"]


def test_a_device_that_is_not_in_the_cluster_is_refused_with_those_that_are() -> None:
    with thread_pool(cpu=1, v100=1) as pool, pytest.raises(UsageError, match="no device 't4': it has v100, cpu"):
        optimize_on(pool, fire(), OptimizeSettings(device="t4"))
    assert pool.tasks == []


def test_measuring_again_is_refused_with_an_alternative() -> None:
    with thread_pool(cpu=1) as pool, pytest.raises(UsageError, match="empty one with --profile-db"):
        optimize_on(pool, fire(), OptimizeSettings(resume=False))


def test_a_usage_error_of_the_worker_is_raised_by_the_driver() -> None:
    with thread_pool(cpu=1) as pool, pytest.raises(UsageError, match="--threads 64 is more than the 2"):
        optimize_on(pool, fire(), OptimizeSettings(threads=64))


class Interrupted:
    """Ctrl-C comes soon after a worker has begun, and is answered."""

    can_come = True

    def __init__(self, pool: ThreadPool, wants_best: bool) -> None:
        self.pool, self.wants_best = pool, wants_best
        self.looks = 0
        self.accepted = False

    @property
    def came(self) -> bool:
        self.looks += bool(self.pool.calls)
        return self.looks == 3

    def ask(self) -> None:
        if not self.wants_best:
            raise KeyboardInterrupt
        self.accepted = True

    def holding(self) -> Interrupted:
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


def slow_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from iosched.profiler.devices.cpu import measured_cost as cpu_cost

    timed = cpu_cost.CpuStageCost._timed
    monkeypatch.setattr(cpu_cost.CpuStageCost, "_timed", lambda *a, **k: (time.sleep(0.3), timed(*a, **k))[1])


def test_an_interruption_answered_with_yes_returns_the_best_known(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = optimize(fire(), OptimizeSettings(device="cpu", threads=2))
    slow_stages(monkeypatch)
    with thread_pool(cpu=1) as pool:
        found = optimize_on(pool, fire(), OptimizeSettings(), interrupt=Interrupted(pool, wants_best=True))
    assert found.measurements < whole.measurements


def test_an_interruption_answered_with_no_ends_the_job_and_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_stages(monkeypatch)
    with thread_pool(cpu=1) as pool:
        with pytest.raises(KeyboardInterrupt):
            optimize_on(pool, fire(), OptimizeSettings(), interrupt=Interrupted(pool, wants_best=False))
        with pytest.raises(InterruptedTaskError):
            finish(pool, *pool.pending)
