"""Overhead of a request to `iosched.serve_together`, with a model that takes no time.

    python benchmarks/served_calls.py [--output benchmarks/results/served_calls.json]

`load` calls a loaded model on one thread, `alone` the same model when it is served on two cores. `handed over` is the
time between the end of a run and the begin of the next one, in another thread, on a core for which two threads always
wait. Rounds alternate; a sample is the median of a round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from command_line import read_options
from results_files import RESULTS, write_results
from session_calls import write

import iosched
from iosched.jobs.serving.core_pool import CorePool
from iosched.profiler.measuring.interleave import interleave

CALLS = 500
WORK_S = 200e-6  # without the GIL, as in a run, so that the other thread waits already


def main() -> None:
    options = read_options(__file__, output=RESULTS / "served_calls.json", rounds=40)
    x = {"x": np.ones((1, 8), np.float32)}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder, "relu.iosched.onnx")
        write(path)
        loaded = stack.enter_context(iosched.load(path, threads=1))
        served = stack.enter_context(iosched.serve_together({"relu": path}, threads=2))
        calls = {
            "load": timed(lambda: loaded.run(x)),
            "alone": timed(lambda: served.run("relu", x)),
            "handed over": handed_over,
        }
        found = interleave(calls, options.rounds)
    samples_us = {name: each.samples_us for name, each in found.items()}
    write_results(options, {"calls_a_round": CALLS, "samples_us": samples_us}, seeds={})
    for name, each in found.items():
        print(f"{name:12} {each.median_us:6.1f} us ({each.low_us:.1f} to {each.high_us:.1f})")


def timed(call: Callable[[], Any]) -> Callable[[], float]:
    """A function that calls n times and returns the microseconds of the median call."""

    def round_us() -> float:
        times_us = []
        for _ in range(CALLS):
            began = time.perf_counter_ns()
            call()
            times_us.append((time.perf_counter_ns() - began) / 1e3)
        return median(times_us)

    return round_us


def handed_over() -> float:
    """Microseconds from the end of a run to the begin of the next, on a core for which two threads wait."""
    pool, spans = CorePool(1, iosched.ServingPolicy()), list[tuple[int, int, int]]()

    def ask(thread: int) -> None:
        for _ in range(CALLS // 2):
            with pool.cores("relu"):
                began = time.perf_counter_ns()
                time.sleep(WORK_S)
                spans.append((began, time.perf_counter_ns(), thread))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    pairs = pairwise(spans)
    return median((after[0] - before[1]) / 1e3 for before, after in pairs if after[2] != before[2])


if __name__ == "__main__":
    main()
