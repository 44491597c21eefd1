"""Latencies that were measured while the machine was slow are corrected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from scripted import fire

from iosched.profiler.devices.cpu.calibration_kernel import (
    KERNEL_RUNS,
    WAKING_RUNS,
    compile_calibration_kernel,
    corrected,
    measure_reference,
    slowness_now,
)
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Stage, Strategy


class Machine:
    """Runs things at a speed that changes from run to run."""

    def __init__(self, slowness: Sequence[float]) -> None:
        self.slowness = iter(slowness)

    def runs(self, latency_us: float) -> Callable[[int], Sequence[float]]:
        return lambda count: [latency_us * next(self.slowness) for _ in range(count)]


def test_the_speed_of_the_machine_cancels_out() -> None:
    for slowness in (1.0, 1.3, 0.8):
        machine = Machine([slowness] * 100)
        run = corrected(machine.runs(500.0), machine.runs(80.0), lambda: 100.0)
        assert run(4) == pytest.approx([625.0] * 4)
        assert run(2) == pytest.approx([625.0] * 2)


def test_the_speed_is_the_median_of_before_and_after() -> None:
    """One disturbed run of the calibration kernel changes nothing."""
    kernel = [7.0, 1.0, 9.0, *[1.0] * (KERNEL_RUNS - 2)]  # the first run finds other things in the caches
    machine = Machine([*kernel, 2.0, 1.0, *kernel])
    assert corrected(machine.runs(500.0), machine.runs(80.0), lambda: 80.0)(2) == pytest.approx([1000.0, 500.0])


@pytest.mark.parametrize(("slowness", "corrected_us"), [(200.0, 250.0), (2.0, 250.0), (0.5, 1000.0)])
def test_a_preempted_kernel_does_not_mean_a_slow_machine(slowness: float, corrected_us: float) -> None:
    run = corrected(Machine([1.0] * 100).runs(500.0), Machine([slowness] * 100).runs(80.0), lambda: 80.0)
    assert run(3) == pytest.approx([corrected_us] * 3)


def test_a_machine_that_speeds_up_is_corrected_by_the_mean_speed() -> None:
    """The machine is half as fast before the batch as after it; the batch is corrected by the mean of both speeds."""
    machine = Machine([2.0] * (1 + KERNEL_RUNS) + [1.5] * 2 + [1.0] * (1 + KERNEL_RUNS))
    run = corrected(machine.runs(500.0), machine.runs(80.0), lambda: 80.0)
    assert run(2) == pytest.approx([500.0, 500.0])


def test_calibration_after_one_batch_is_that_before_the_next() -> None:
    asked: list[str] = []

    def recorded(name: str) -> Callable[[int], Sequence[float]]:
        def run(count: int) -> list[float]:
            asked.append(f"{name}{count}")
            return [1.0] * count

        return run

    run = corrected(recorded("stage"), recorded("yardstick"), lambda: 1.0)
    assert asked == []
    run(5)
    run(2)
    kernel = f"yardstick{1 + KERNEL_RUNS}"
    assert asked == [kernel, "stage5", kernel, "stage2", kernel]


def test_the_calibration_kernel_of_a_backend_can_be_measured() -> None:
    with CpuBackend(fire(), lanes=2) as backend:
        found = measure_reference(compile_calibration_kernel(backend).time)
    assert found.median_us > 0
    assert len(found.samples_us) >= 6


GROUP = WAKING_RUNS + 1 + KERNEL_RUNS


def test_a_passing_slowdown_does_not_move_the_reference_median() -> None:
    machine = Machine([4.0] * (6 * GROUP) + [1.0] * (9 * GROUP))
    found = measure_reference(machine.runs(80.0), rest=lambda: None)
    assert (found.low_us, found.median_us, found.high_us) == pytest.approx((80.0, 80.0, 320.0))


def test_the_reference_is_the_median_of_all_groups_and_not_the_fastest() -> None:
    machine = Machine([slowness for group in range(15) for slowness in [1.0 + 0.1 * group] * GROUP])
    assert measure_reference(machine.runs(80.0), rest=lambda: None).median_us == pytest.approx(80.0 * 1.7)


def test_the_current_slowness_ignores_the_runs_that_wake_the_machine() -> None:
    machine = Machine([9.0] * (WAKING_RUNS + 1) + [1.5] * KERNEL_RUNS)
    assert slowness_now(machine.runs(80.0), 100.0) == pytest.approx(1.2)


def test_the_current_slowness_is_known_only_with_a_reference() -> None:
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert cost.slowness() is None
        assert database.calibration(cost.device) is None
        database.keep_calibration(cost.device, summarize([1e6] * 7))
        slowness = cost.slowness()
        assert slowness is not None
        assert 0 < slowness < 0.1


def test_the_reference_is_measured_once_for_a_device(tmp_path: Path) -> None:
    """It is kept when stages are measured again: stored latencies of other models are relative to it."""
    stored = []
    for name, resume in (("f1", True), ("f3", True), ("fs", False)):
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
            cost = CpuStageCost(backend, database, resume=resume)
            cost.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),)))
            stored.append(database.calibration(cost.device))
    assert stored[0] == stored[1] == stored[2]
    assert stored[0] is not None


def test_latencies_are_relative_to_the_reference_of_the_device(tmp_path: Path) -> None:
    """Latencies are those of a slow machine if its stored calibration kernel took a second."""
    with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        plain = cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("f1",),)))
        known = database.calibration(cost.device)
        assert known is not None
        assert known.median_us < 1e5
        again = CpuStageCost(backend, database)
        database.keep_calibration(cost.device, type(known)(1e6, 1e6, 1e6, (1e6,) * 7))
        assert again.stage_latency_us(Stage(Strategy.CONCURRENT, (("f3",),))) > 5 * plain
