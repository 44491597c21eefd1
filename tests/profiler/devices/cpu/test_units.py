"""Schedules of operators as schedules of the units that the CPU runs."""

from __future__ import annotations

from scripted import fire
from shipped import document

from iosched.profiler.devices.cpu.units import CpuUnits
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def test_a_schedule_from_elsewhere_is_taken_as_the_cpu_can_run_it() -> None:
    model = fire()
    with CpuBackend(model, lanes=2) as backend:
        whole = CpuUnits(backend.coarse).scheduled(document(model, "greedy").schedule)
        units = sorted(name for stage in whole.stages for name in stage.operators)
        assert units == sorted(operator.name for operator in backend.graph.operators)
        apart = tuple(Stage(Strategy.CONCURRENT, ((operator.name,),)) for operator in model.graph.operators)
        taken = CpuUnits(backend.coarse).scheduled(Schedule((Block(0, apart),)))
        assert sorted(name for stage in taken.stages for name in stage.operators) == units
