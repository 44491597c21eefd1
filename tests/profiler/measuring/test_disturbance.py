"""The system reports the load of other processes; doubts about a latency come from its own samples."""

from __future__ import annotations

import importlib
import math
import os
from pathlib import Path

import pytest

from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.disturbance import TICKS_PER_SECOND, Load, read_load

STAT = """cpu  100 0 100 1000 10 5 5 40 30 0
cpu0 50 1 50 500 5 2 3 30 20 0
cpu1 50 2 50 500 5 3 2 10 10 0
cpu10 9 9 9 9 9 9 9 9 9 9
intr 1 2 3
"""


@pytest.fixture(autouse=True)
def _real_detection() -> None:
    """Other tests run as if undisturbed; these are about the detection itself."""
    importlib.reload(disturbance)


def load(wall_s: float, own_s: float = 0.0, busy_s: float = 0.0, stolen_s: float = 0.0) -> Load:
    return disturbance.Load(wall_s, own_s, busy_s, stolen_s)


def test_only_the_given_processors_count_and_guests_count_once(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT, encoding="ascii")
    found = {cpus: read_load(cpus, stat) for cpus in ((0,), (1,), (0, 1), ())}
    ticks = {cpus: (each.busy_s * TICKS_PER_SECOND, each.stolen_s * TICKS_PER_SECOND) for cpus, each in found.items()}
    assert ticks == {(0,): (106, 30), (1,): (107, 10), (0, 1): (213, 40), (): (0, 0)}


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2 3\n", "nothing of the kind"])
def test_a_system_without_load_figures_means_no_disturbance(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text, encoding="ascii")
    before, after = read_load((0,), stat), read_load((0,), stat)
    assert (before.busy_s, before.stolen_s) == (0, 0)
    assert disturbance.disturbances(before, after, 1) == ()


def test_the_time_of_this_process_does_not_count_as_others() -> None:
    assert disturbance.disturbances(load(0.0), load(1.0, own_s=2.0, busy_s=2.0), 2) == ()
    assert disturbance.disturbances(load(0.0), load(1.0, own_s=1.0, busy_s=2.0), 2) == (
        "other processes used 50% of the cores",
    )
    assert disturbance.disturbances(load(5.0, busy_s=9.0), load(6.0, 1.4, 10.6), 2) == ()  # a tenth of the cores


def test_a_few_ticks_are_no_disturbance() -> None:
    assert disturbance.disturbances(load(0.0), load(0.02, busy_s=0.02), 1) == ()
    assert disturbance.disturbances(load(0.0), load(0.05, busy_s=0.04), 1) == ("other processes used 80% of the cores",)
    assert disturbance.disturbances(load(0.0), load(0.0, busy_s=1.0), 1) == ()


def test_time_that_the_host_takes_counts() -> None:
    assert disturbance.disturbances(load(0.0), load(1.0, stolen_s=0.05), 2) == ()
    assert disturbance.disturbances(load(0.0), load(1.0, stolen_s=0.5), 2) == ("the host took 25% of the cores",)


@pytest.mark.parametrize(
    ("slowness", "width", "words"),
    [
        ([], math.inf, []),
        ([1.0, 1.2, 0.9], 0.1, []),
        ([1.6, 1.7], math.inf, []),  # slow all the time, which the calibration kernel corrects
        ([2.3, 2.4], 0.1, ["2.4 times its reference"]),
        ([0.3, 0.4], 0.1, ["0.3 times its reference"]),
        ([1.0, 1.8, 1.0], 0.1, ["varied by a factor of 1.8"]),
        ([1.0], 0.8, ["is 80% of the median"]),
        ([1.0, 6.0], 1.5, ["6.0 times its reference", "150%"]),
    ],
)
def test_an_off_or_unsteady_calibration_kernel_and_scattered_runs_are_doubted(
    slowness: list[float], width: float, words: list[str]
) -> None:
    found = disturbance.doubts(slowness, width)
    assert len(found) == len(words)
    assert all(word in text and "," not in text for word, text in zip(words, found, strict=True))


def test_the_load_of_this_machine_grows() -> None:
    before = read_load(os.sched_getaffinity(0))
    sum(range(10**5))
    after = read_load(os.sched_getaffinity(0))
    assert after.wall_s > before.wall_s
    assert after.own_s >= before.own_s
    assert after.busy_s >= before.busy_s >= 0
