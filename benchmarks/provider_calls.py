"""Latency of an exported model: plain onnxruntime, iosched as its provider, and our runtime from Python and from C.

    python benchmarks/provider_calls.py [--networks zoo:squeezenet,...] [-o benchmarks/results/provider-calls.json]

All alternatives run the same file, interleaved, in one process. One Relu of one float, on one lane and on two, shows
the overhead of a call; a sample is the median of many calls. For networks, with greedy schedules, it is the median of a
few, after this process has become idle. `C` is `iosched_plan_run` with arrays prepared once.

Options:
    --pinned: pins the lanes of the provider and of C, as our runtime does from Python
"""

from __future__ import annotations

import ctypes
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from command_line import read_options
from cpu_models import cpu_model, model_of, short_name
from provider_opening import Arrays, exported, onnxruntime, opened
from result_tables import compared, print_table, ratio_text
from results_files import RESULTS, write_results

import iosched
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import Measurement
from iosched.runtime.cpu.library import api_base, compiled, onnxruntime_path
from iosched.runtime.cpu.opened_plan import _Options
from iosched.runtime.inputs import random_inputs

NETWORKS = ("zoo:squeezenet", "zoo:googlenet", "zoo:inception_v3", "light_shufflenet", "zoo:nasnet_a@224")
CALLS, CALLS_OF_NETWORK = 300, 3
LANES = 2
Call = Callable[[], object]
OWN = "iosched.load"


def main() -> None:
    options = read_options(
        __file__,
        output=RESULTS / "provider-calls.json",
        networks=NETWORKS,
        rounds=60,
        rounds_of_networks=15,
        pinned=False,
    )
    onnxruntime.register_execution_provider_library("iosched", iosched.plugin_path())
    found = {}
    for lanes in (1, LANES):
        found[f"one Relu, {_lanes(lanes)}"] = measured(relu(), lanes, options, CALLS)
    for name, lanes in product(options.networks, (1, LANES)):
        found[f"{short_name(name)}, {_lanes(lanes)}"] = measured(cpu_model(name), lanes, options, CALLS_OF_NETWORK)
    samples_us = {name: {way: each.samples_us for way, each in ways.items()} for name, ways in found.items()}
    write_results(options, {"calls_of_relu": CALLS, "calls_of_networks": CALLS_OF_NETWORK, "samples_us": samples_us})


def _lanes(count: int) -> str:
    return "1 lane" if count == 1 else f"{count} lanes"


def relu() -> iosched.Model:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    return iosched.load_model(model_of([node], ["x"], ["y"], (1,)), name="relu")


def measured(model: iosched.Model, lanes: int, options: Namespace, calls: int) -> Mapping[str, Measurement]:
    """Microseconds of a call of each alternative."""
    feed = random_inputs(model.graph.inputs)
    is_tiny = calls == CALLS

    with TemporaryDirectory() as folder, ExitStack() as stack:
        _, path = exported(model, Path(folder, "export"), lanes)
        ways = alternatives(stack, path, lanes, feed, str(int(options.pinned)))
        runs = {name: partial(timed, call, calls) for name, call in ways.items()}
        found = interleave(runs, options.rounds if is_tiny else options.rounds_of_networks, rest=wait_until_idle)
    show(model.name, lanes, found)
    return found


def alternatives(stack: ExitStack, path: Path, lanes: int, feed: Arrays, pin: str) -> dict[str, Call]:
    """A call of each alternative, ready to run."""
    plain, provider = opened(path, "plain", threads=lanes), opened(path, "devices", threads=lanes, pin=pin)
    own = stack.enter_context(iosched.load(path, strict=True))
    session = stack.enter_context(iosched.InferenceSession(path, strict=True))
    found: dict[str, Call] = {
        "onnxruntime": partial(plain.run, None, feed),
        "provider": partial(provider.run, None, feed),
        OWN: partial(own.run, feed),
        "iosched.InferenceSession": partial(session.run, None, feed),
        "C": stack.enter_context(by_c(path, lanes if pin == "1" else 0, feed, own.run(feed))),
    }
    np.testing.assert_array_equal(provider.run(None, feed)[0], next(iter(own.run(feed).values())))
    return found


@contextmanager
def by_c(path: Path, n_pinned: int, feed: Arrays, outputs: Arrays) -> Iterator[Call]:
    """A run of the C interface, on arrays at fixed addresses."""
    library = compiled()
    assert library is not None
    cpus = (ctypes.c_int32 * n_pinned)(*range(n_pinned))
    settings = _Options(ctypes.sizeof(_Options), cpus if n_pinned else None, n_pinned)
    plan = library.iosched_plan_open(
        str(path.with_suffix(".plan")).encode(), api_base(str(onnxruntime_path())), ctypes.byref(settings)
    )
    assert plan, library.iosched_plan_error()
    kept = [np.ascontiguousarray(each) for each in feed.values()], [np.empty_like(each) for each in outputs.values()]
    inputs, targets = ((ctypes.c_void_p * len(each))(*(array.ctypes.data for array in each)) for each in kept)
    call = partial(library.iosched_plan_run, ctypes.c_void_p(plan), 0, inputs, targets, None, None)
    assert call() == 0, library.iosched_plan_error()
    yield call
    for found, expected in zip(kept[1], outputs.values(), strict=True):
        np.testing.assert_array_equal(found, expected)
    library.iosched_plan_close(plan)


def timed(call: Call, count: int) -> float:
    """Microseconds of the median of n calls."""
    times_us = []
    for _ in range(count):
        began = time.perf_counter_ns()
        call()
        times_us.append((time.perf_counter_ns() - began) / 1e3)
    return median(times_us)


def show(name: str, lanes: int, found: Mapping[str, Any]) -> None:
    """A table of one model."""
    speed = compared({way: each.samples_us for way, each in found.items()}, OWN)
    rows = [
        (f"{name}, {_lanes(lanes)}", way, f"{each.median_us:.1f} ({each.low_us:.1f} to {each.high_us:.1f})",
         ratio_text(speed.get(way), ".3f"))
        for way, each in found.items()
    ]  # fmt: skip
    print_table(("model", "by", "us a call", f"speed, of {OWN}"), rows)


if __name__ == "__main__":
    main()
