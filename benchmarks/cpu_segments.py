"""Whether parts of a network gain from running as one session each, now that operators run without sessions.

    python benchmarks/cpu_segments.py RESULTS.json SECONDS MODEL...

MODEL is named as `cpu_models.py` says; SECONDS is the time for a search. Whole runs are interleaved: the schedule found
without sessions ("found"), the ones that the search for sessions prefers, all operators in one session, and one
operator after another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from cpu_models import cpu_model, short_name
from testbed import compared

from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Block, Schedule, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.stretches import session_of, with_sessions

ROUNDS = 21


def main() -> None:
    path, seconds, found = Path(sys.argv[1]), float(sys.argv[2]), {}
    for name in sys.argv[3:]:
        found[short_name(name)] = entry = measured(cpu_model(name), seconds)
        path.write_text(json.dumps(found, indent=1) + "\n")
        ratios = compared(entry["samples_us"], "found")
        cells = [f"{key} {each.value:.3f} ({each.low:.3f} to {each.high:.3f})" for key, each in ratios.items()]
        print(short_name(name), *cells, sep=" | ", flush=True)


def measured(model: Model, seconds: float) -> dict[str, Any]:
    with ProfileDatabase(None) as database:
        opened = CpuDevice().open(model, OpenSettings(), database)
        result = search(opened.graph, opened.cost, effort=opened.effort, deadline=after(seconds))
        joined = with_sessions(opened.graph, opened.cost, result.schedule.blocks, is_over=after(seconds / 2))
        backend = opened.cost.backend
        whole = session_of(backend.graph, [operator.name for operator in backend.graph.operators])
        schedules = {
            "found": result.schedule,
            "sequential": sequential(backend.graph),
            "one session": Schedule((Block(0, (whole,)),)),
            "with sessions": Schedule(joined.blocks),
            "sessions favoured": Schedule(joined.favoured),
        }
        compiled = {name: backend.compile(schedule) for name, schedule in schedules.items()}
        inputs = random_inputs(model.graph.inputs)
        runs = max(3, min(12, int(1e5 / min(compiled["found"].time(inputs, 2)))))
        samples: dict[str, list[float]] = {name: [] for name in compiled}
        for _ in range(ROUNDS):
            for name, each in compiled.items():
                time.sleep(0.02)
                samples[name].append(median(each.time(inputs, runs + 1)[1:]))
        opened.close()
    sessions = {name: sum(s.strategy is Strategy.SESSION for s in each.stages) for name, each in schedules.items()}
    return {"samples_us": samples, "sessions": sessions}


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


if __name__ == "__main__":
    main()
