"""The run of median latency is traced."""

from __future__ import annotations

import numpy as np
import pytest

from iosched.runtime.executor import TaskOrigin, TracedRuns

ORIGINS = [TaskOrigin("a", 0, 0, ("A",)), TaskOrigin("b", 1, 1, ("B", "C"))]


@pytest.mark.parametrize(
    ("times_us", "number"), [([7.0], 0), ([9.0, 3.0, 5.0], 2), ([4.0, 8.0, 2.0, 6.0], 0), ([1.0, 1.0], 0)]
)
def test_the_traced_tasks_are_those_of_the_run_of_median_latency(times_us: list[float], number: int) -> None:
    spans_us = np.array([[[run, run + 0.25], [run + 0.5, run + 1]] for run in range(len(times_us))], float)
    found = TracedRuns.of(ORIGINS, times_us, spans_us)
    assert (found.number, found.latency_us) == (number, times_us[number])
    assert found.times_us == tuple(times_us)
    assert [(task.origin.name, task.begin_us - number, task.end_us - number) for task in found.tasks] == [
        ("a", 0.0, 0.25),
        ("b", 0.5, 1.0),
    ]
