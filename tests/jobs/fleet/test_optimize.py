"""`optimize` on a cluster finds what it finds here, and asks all workers of the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType

import pytest
from scripted import LATENCIES_US, fire, latencies_by_stage, script_models
from thread_fleet import thread_fleet

from iosched.jobs.fleet.messages import InterruptedWorkError
from iosched.jobs.fleet.optimize import optimize_there
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.errors import UsageError
from iosched.profiler.store.database import ProfileDatabase


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch)


def test_a_cluster_finds_what_this_machine_finds(tmp_path: Path) -> None:
    settings = OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db")
    local = optimize(fire(), settings)
    with thread_fleet(cpu=3) as fleet:
        found = optimize_there(fleet, fire(), settings)
    assert replace(found.document, search=local.document.search) == local.document  # rounds ask for some more
    assert found.schedule == local.schedule
    assert (found.shipped, found.shipped_us) == (local.shipped, local.shipped_us)
    assert sum(fleet.packets) > 3
    with ProfileDatabase(tmp_path / "other.db") as database:
        database.merge(fleet.rows)
    again = optimize(fire(), replace(settings, profile_db=tmp_path / "other.db"))
    assert (again.measurements, again.schedule) == (0, local.schedule)


def test_a_worker_that_is_alone_asks_itself(tmp_path: Path) -> None:
    with thread_fleet(cpu=1) as fleet:
        optimize_there(fleet, fire(), OptimizeSettings())
    assert fleet.packets == []


def test_auto_is_a_gpu_of_the_cluster_where_there_is_one() -> None:
    with thread_fleet(cpu=1, v100=1) as fleet:
        optimize_there(fleet, fire(), OptimizeSettings(strategy="sequential"))
        optimize_there(fleet, fire(), OptimizeSettings(device="CPU", strategy="sequential"))
    assert [errand.device for errand in fleet.errands] == ["v100", "cpu"]


def test_a_device_that_the_cluster_lacks_is_refused_with_those_that_it_has() -> None:
    with thread_fleet(cpu=1, v100=1) as fleet, pytest.raises(UsageError, match="no device 't4': it has v100, cpu"):
        optimize_there(fleet, fire(), OptimizeSettings(device="t4"))
    assert fleet.errands == []


def test_measuring_anew_is_refused_with_the_way_out() -> None:
    with thread_fleet(cpu=1) as fleet, pytest.raises(UsageError, match="empty one with --profile-db"):
        optimize_there(fleet, fire(), OptimizeSettings(resume=False))


def test_what_the_worker_refuses_is_raised_here() -> None:
    with thread_fleet(cpu=1) as fleet, pytest.raises(UsageError, match="--threads 64 is more than the 2"):
        optimize_there(fleet, fire(), OptimizeSettings(threads=64))


class Interrupted:
    """Ctrl-C comes after a few looks, and is answered."""

    can_come = True

    def __init__(self, wants_best: bool) -> None:
        self.wants_best = wants_best
        self.looks = 0
        self.accepted = False

    @property
    def came(self) -> bool:
        self.looks += 1
        return self.looks == 1

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

    from iosched.profiler.devices.cpu import cost as cpu_cost

    timed = cpu_cost.CpuStageCost._timed
    monkeypatch.setattr(cpu_cost.CpuStageCost, "_timed", lambda *a, **k: (time.sleep(0.3), timed(*a, **k))[1])


def test_an_interruption_that_is_answered_with_yes_brings_the_best_known(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = optimize(fire(), OptimizeSettings(device="cpu", threads=2))
    slow_stages(monkeypatch)
    with thread_fleet(cpu=1) as fleet:
        found = optimize_there(fleet, fire(), OptimizeSettings(), interrupt=Interrupted(wants_best=True))
    assert found.measurements < whole.measurements


def test_an_interruption_that_is_answered_with_no_ends_it_and_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_stages(monkeypatch)
    with thread_fleet(cpu=1) as fleet:
        with pytest.raises(KeyboardInterrupt):
            optimize_there(fleet, fire(), OptimizeSettings(), interrupt=Interrupted(wants_best=False))
        with pytest.raises(InterruptedWorkError):
            fleet._open[0].future.result(10)
