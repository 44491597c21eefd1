"""Stretches of stages on this CPU, measured in turn: what says whether one is faster than another.

A stage's latency is measured once or twice, minutes apart from those it is compared with, and without its neighbours.
That is good enough to search by, and not to say of two schedules that one is better: a machine drifts by more than they
differ by. Here the stages of each stretch run as one plan, A B A B, with other bytes in the caches before each run.
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
"""How many samples there are of each stretch, and how many runs each of them is the median of."""


def stretches_in_turn(
    backend: CpuBackend, stretches: Mapping[str, Sequence[Stage]], sweep_nbytes: int
) -> Mapping[str, Measurement]:
    """The latency of each stretch in microseconds, at the speed that the machine has now; sample k is of round k.

    Those that cannot be run are left out. The samples can be compared (`interleave.compare`), and with nothing else.
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
    """The median of some runs, after one that finds the caches as the stretch before left them."""
    return quantile(compiled.time(1 + RUNS, flush_nbytes=sweep_nbytes)[1:], 0.5)
