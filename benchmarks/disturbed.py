"""Quality of a search during which other processes use the cores, on the CPU of this machine.

    python benchmarks/disturbed.py [--network squeezenet] [--searches 2] [--seconds 5] [--rounds 15] [-o F.json]

Three kinds of searches have a database of their own: on the machine as it is (`quiet`); while two processes per core
are busy for n seconds, from half a second after the start (`noticed`); and the same with a cost model without
`profiler/measuring/disturbance.py` (`trusted`). All schedules found then run interleaved.

Options:
    --network: a name from `iosched zoo list`
    --searches: of each kind
    --seconds: duration of the interference
    --output: raw results as JSON
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from unittest import mock

from command_line import read_options
from regret import Candidates, bootstrap, candidate_of, in_turn
from result_tables import interval_text, print_table
from results_files import write_results
from testbed import zoo_model

from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import CPU_EFFORT
from iosched.profiler.measuring import disturbance
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.baselines import sequential
from iosched.scheduler.search import search

KINDS = ("quiet", "noticed", "trusted")
DELAY_SECONDS = 0.5
HEADERS = ("searches", "measurements", "of them anew", "seconds", "predicted ms", "measured ms", "over quiet")


@dataclass(frozen=True)
class Searched:
    """A search: its kind, its effort, and the candidate that is its schedule."""

    kind: str
    candidate: int
    measurements: int
    anew: int
    seconds: float
    predicted_us: float


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, network="squeezenet", searches=2, seconds=5.0, rounds=15, output=Path)
    candidates: Candidates = {}
    with CpuBackend(zoo_model(options.network)) as backend:
        kinds = KINDS * options.searches
        found = [searched(backend, kind, options.seconds, candidates) for kind in kinds]
        compiled = [backend.compile_stages(stages) for stages in candidates.values()]
        samples = in_turn([each for each in compiled if each is not None], options.rounds, 0)
    print_table(HEADERS, [row(kind, found, samples) for kind in KINDS])
    write_results(options, {"searches": [asdict(each) for each in found], "samples_us": samples})


def searched(backend: CpuBackend, kind: str, seconds: float, candidates: Candidates) -> Searched:
    """One search; the calibration kernel is measured before the interference."""
    with ProfileDatabase(None) as database:
        cost = CpuStageCost(backend, database)
        cost.stage_latency_us(next(iter(sequential(backend.graph).stages)))
        started = time.monotonic()
        trusting = mock.patch.multiple(disturbance, disturbances=lambda *_: (), doubts=lambda *_: ())
        with nullcontext() if kind == "quiet" else burning(seconds), trusting if kind == "trusted" else nullcontext():
            result = search(backend.graph, cost, effort=CPU_EFFORT)
        number = candidate_of(candidates, result.schedule)
        predicted = result.schedule.predicted_us or 0.0
        one = Searched(kind, number, cost.measurements, cost.repeated, time.monotonic() - started, predicted)
    print(one, file=sys.stderr, flush=True)
    return one


@contextmanager
def burning(seconds: float) -> Iterator[None]:
    """Two processes per core that keep the cores busy for some time, after a short delay."""
    context = get_context("spawn")
    burners = [context.Process(target=_burn, args=(seconds,)) for _ in range(2 * len(os.sched_getaffinity(0)))]
    starter = threading.Timer(DELAY_SECONDS, lambda: [each.start() for each in burners])
    starter.start()
    yield
    starter.join()
    for each in burners:
        each.join()


def _burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def row(kind: str, found: Sequence[Searched], samples: Sequence[Sequence[float]]) -> list[str]:
    """Costs of the searches of a kind, and latencies of their schedules over those of the quiet searches."""
    own = [each for each in found if each.kind == kind]
    quiet = [each for each in found if each.kind == "quiet"]
    ratios = [
        [a / b for a, b in zip(samples[one.candidate], samples[other.candidate], strict=True)]
        for one, other in zip(own, quiet, strict=True)
    ]
    low, high = bootstrap(ratios)
    counts = (mean(getattr(each, name) for each in own) for name in ("measurements", "anew"))
    predicted, taken = mean(each.predicted_us for each in own), mean(median(samples[each.candidate]) for each in own)
    return [
        *(kind, *(f"{count:.0f}" for count in counts), f"{mean(each.seconds for each in own):.1f}"),
        *(f"{us / 1e3:.2f}" for us in (predicted, taken)),
        "" if kind == "quiet" else interval_text(mean(map(median, ratios)), low, high, ".3f"),
    ]


if __name__ == "__main__":
    main()
