"""Interleaved latencies of segments of stages on this CPU, which decide whether one is faster than another.

A stage's latency is measured minutes apart from others and without its neighbours, which suffices for a search but not
to compare two schedules: a machine drifts by more than they differ. Here the stages of each segment run as one plan,
A B A B, with flushed caches before each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import Measurement, quantile
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.scheduler.schedule import Stage

ROUNDS, RUNS = 21, 3
"""Samples of each segment, and runs that a sample is the median of."""


def interleaved_segments(
    backend: CpuBackend, stretches: Mapping[str, Sequence[Stage]], sweep_nbytes: int
) -> Mapping[str, Measurement]:
    """The latency of each segment that can run, in microseconds at the machine's present speed; sample k is of round k.

    The samples compare with each other (`interleave.compare`), and with nothing else.
    """
    compiled: dict[str, CompiledStage] = {}
    try:
        for name, stages in stretches.items():
            if (found := backend.compile_stages(stages)) is not None:
                compiled[name] = found
        turns = {name: partial(_sample, each, sweep_nbytes) for name, each in compiled.items()}
        return interleave(turns, ROUNDS, warmup=1, rest=wait_until_idle) if turns else {}
    finally:
        for each in compiled.values():
            each.executor.close()


def _sample(compiled: CompiledStage, sweep_nbytes: int) -> float:
    return quantile(compiled.time(1 + RUNS, flush_nbytes=sweep_nbytes)[1:], 0.5)
