"""Everything on one GPU: correctness of every network and strategy, then latencies beside what people use today.

    python benchmarks/gpu.py                    # under ten minutes; a table last, raw samples to results/
    python benchmarks/gpu.py --networks squeezenet,inception_v3 --batch-sizes 1 --precisions fp32
    python benchmarks/gpu.py --batch-sizes 1 --ways torch-cudagraph,torch-compile,jax    # compilers take minutes

First come the tests of all networks and strategies. Then every alternative is one CUDA graph, or what its framework
makes of it; all of one network, batch size and precision are measured in turn, A B C A B C. Needs what the extra [cuda]
installs, and PyTorch and JAX for the ways that these are.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from peer import Peer
from testbed import compared, speedup_text

from iosched.models import zoo
from iosched.models.errors import DeviceError, IoschedError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.profiler.devices.cuda.cost import CudaStageCost, open_cost
from iosched.profiler.devices.cuda.device import GPU_EFFORT
from iosched.profiler.devices.gpus import spec_of
from iosched.profiler.measuring.in_turn import Budget, Candidate, measure_in_turn
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import search

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TESTS_SHARE = 0.5  # of the time
NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
JAX = "jax"
WAYS = ("torch", "torch-cudagraph", "torch-compile", JAX)
LIMITS = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class Case:
    """One network at one batch size in one precision."""

    network: str
    batch: int
    precision: str


def main() -> int:
    options = _options()
    try:
        gpu = attach(options.gpu)
    except DeviceError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0
    deadline = time.monotonic() + options.seconds
    tests = "not run" if options.no_tests else _tests(options.seconds * TESTS_SHARE)
    report = {"gpu": gpu.name, "versions": _versions(gpu), "tests": tests, "before": _clock(gpu), "cases": []}
    rows = [f"tests/gpu: {tests}"]
    for case in _cases(options):
        if time.monotonic() > deadline:
            print(f"out of time before {case}", file=sys.stderr)
            break
        try:
            with ProfileDatabase(options.profile_db) as database:
                found = run_case(gpu, case, options, deadline, database)
        except IoschedError as error:
            found = {"error": str(error)}
        report["cases"].append({**asdict(case), **found, "clock": _clock(gpu)})
        rows.append(_row(case, found))
        print(rows[-1], file=sys.stderr, flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{gpu.name}; latency in us (median), error, and times as fast as the sequential CUDA graph")
    print("\n".join(rows))
    return 0


def _tests(seconds: float) -> str:
    """The closing line of the tests of every network and strategy, on all cores; what they print goes to stderr."""
    # -P: the working folder is not where the package is.
    words = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "8", "--dist", "worksteal", str(ROOT / "tests" / "gpu")]
    try:
        shown = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False, cwd=ROOT).stdout
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:.0f} s"
    print(shown, file=sys.stderr, flush=True)
    return (shown.strip().splitlines() or ["nothing was run"])[-1].strip("= ")


def run_case(
    gpu: AttachedGpu, case: Case, options: argparse.Namespace, deadline: float, database: ProfileDatabase
) -> dict[str, object]:
    """Searches, checks and measures one case."""
    model = load_model(zoo.build(case.network).SerializeToString(), name=case.network, batch_size=case.batch)
    started = time.monotonic()
    opened = open_cost(gpu, model, case.precision, database)
    opened_s = time.monotonic() - started
    backend = opened.backend
    found, searches = _schedules(opened)
    inputs = random_inputs(model.graph.inputs, seed=case.batch)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    peers, missing = _peers(model, inputs, case.precision, options.ways)
    ours: dict[str, CudaModel] = {}
    try:
        for name, (schedule, barriers) in found.items():
            ours[name] = backend.compile(schedule, barriers=barriers)
            peers[name] = Peer(_ready(ours[name], inputs), partial(_run_on_poison, ours[name], inputs))
        errors = {name: _relative_error(peer.outputs(), expected) for name, peer in peers.items()}
        left_s = max(deadline - time.monotonic(), 1)
        candidates = {
            name: Candidate(peers[name].time) for name in (*ours, *(name for name in peers if name not in ours))
        }
        measured = measure_in_turn(candidates, Budget(options.rounds, left_s), rest=lambda: None)
    finally:
        for compiled in ours.values():
            compiled.close()
    return {
        "relative_error": errors,
        "correct": all(errors[name] < LIMITS[case.precision] for name in ours),
        "kernels": {name: compiled.kernel_count for name, compiled in ours.items()},
        "search": {"opening_seconds": round(opened_s, 2), **searches},
        "missing": missing,
        "roofline_us": _roofline_us(model, gpu.name, case.precision),
        "median_us": {name: round(each.median_us, 2) for name, each in measured.items()},
        "samples_us": {name: [round(sample, 2) for sample in each.samples_us] for name, each in measured.items()},
    }


def _ready(model: CudaModel, inputs: Mapping[str, np.ndarray]) -> Callable[[int], Sequence[float]]:
    """The model with its inputs on the GPU, run once; what it returns tells the microseconds of further runs."""
    model.run(inputs)
    return model.executor.time_launches


def _run_on_poison(model: CudaModel, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a run that finds nothing of an earlier one."""
    model.executor.poison()
    return model.run(inputs)


def _schedules(opened: CudaStageCost) -> tuple[dict[str, tuple[Schedule, bool]], dict[str, object]]:
    """Schedules, with whether stages wait for one another, and what finding them took.

    `both` is searched first, since the others find most of their stages measured.
    """
    graph = opened.backend.graph
    best: dict[str, Schedule] = {}
    searches: dict[str, object] = {}
    for strategy in ("both", "concurrent", "merge"):
        cost = CudaStageCost(opened.backend, opened.database, opened.device, clock=opened.clock)
        started = time.monotonic()
        result = search(graph, cost, strategy=strategy, effort=GPU_EFFORT)
        best[strategy] = result.schedule
        searches[strategy] = {
            "seconds": round(time.monotonic() - started, 2),
            "measurements": cost.measurements,
            "from_database": cost.cache_hits,
            "signatures": cost.signatures,
            "predicted_us": result.schedule.predicted_us,
            "gap": result.gap,
            "dropped": cost.dropped,
            "throttled": dict(cost.throttled),
        }
    ours = {"sequential": sequential(graph), "greedy": greedy(graph)}
    ours |= {strategy: best[strategy] for strategy in ("merge", "concurrent", "both")}
    return {**{name: (each, True) for name, each in ours.items()}, "both, no barriers": (best["both"], False)}, searches


def _peers(
    model: Model, inputs: Mapping[str, np.ndarray], precision: str, ways: Sequence[str]
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Other frameworks as far as they are there, and what is missing, with the reason."""
    found: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    try:
        if any(way.startswith("torch") for way in ways):
            import torch_peers

            found, missing = torch_peers.peers(model, inputs, precision, [way for way in ways if way != JAX])
        if JAX in ways:
            import jax_peers

            found |= jax_peers.peers(model, inputs, precision)
    except (ImportError, ValueError, RuntimeError) as error:
        missing[type(error).__name__] = str(error)[:300]
    return found, missing


def _roofline_us(model: Model, gpu: str, precision: str) -> dict[str, float] | None:
    """Microseconds that arithmetic takes at the GPU's specified peak, and weights, inputs and outputs at its bandwidth.

    What lies between operators may stay in the cache. None where the GPU's specification is not known.
    """
    spec = spec_of(gpu)
    if spec is None:
        return None
    tflops = {"fp32": spec.fp32_tflops, "tf32": spec.tf32_tflops, "fp16": spec.fp16_tensor_tflops}[precision]
    graph = model.graph
    ends = [*graph.inputs, *(graph.tensor[name] for name in graph.outputs)]
    nbytes = sum(array.nbytes for array in model.weights.values()) + sum(end.nbytes for end in ends)
    moved = nbytes // 2 if precision == "fp16" else nbytes
    flops = sum(operator.flops for operator in graph.operators)
    return {
        "arithmetic": round(flops / ((tflops or spec.fp32_tflops) * 1e6), 2),
        "memory": round(moved / (spec.dram_gb_per_s * 1e3), 2),
    }


def _relative_error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    errors = [
        float(np.abs(found[name].astype(np.float64) - array).max() / max(np.abs(array).max(), 1e-30))
        for name, array in expected.items()
    ]
    return max(errors) if np.isfinite(errors).all() else float("inf")


def _row(case: Case, found: Mapping[str, object]) -> str:
    title = f"{case.network:13s} b{case.batch:<3d} {case.precision}"
    if "error" in found:
        return f"{title} failed: {found['error']}"
    medians = found["median_us"]
    assert isinstance(medians, dict)
    against = compared(cast(Mapping[str, Sequence[float]], found["samples_us"]), "sequential")
    cells = [f"{name} {value:.0f}{speedup_text(against.get(name))}" for name, value in medians.items()]
    errors = found["relative_error"]
    assert isinstance(errors, dict)
    return f"{title} {'ok' if found['correct'] else 'WRONG'} {max(errors.values()):.0e} | " + " | ".join(cells)


def _cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(network, int(batch), precision)
        for batch in options.batch_sizes
        for precision in options.precisions
        for network in options.networks
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=_names, default=NETWORKS, help="comma-separated, of `iosched zoo list`")
    parser.add_argument("--batch-sizes", type=_names, default=("1", "16", "64"))
    parser.add_argument("--precisions", type=_names, default=("fp32", "fp16"))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=560, help="begin no further case after so long")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--profile-db", type=Path, default=None)
    parser.add_argument("--ways", type=_names, default=WAYS[:2], help=f"other frameworks: of {', '.join(WAYS)}")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "gpu.json")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _versions(gpu: AttachedGpu) -> dict[str, str]:
    return {**gpu.versions, "python": platform.python_version()}


def _clock(gpu: AttachedGpu) -> dict[str, object] | None:
    """Clocks, temperature, power and throttling now, where NVML tells them."""
    found = gpu.clock()
    return None if found is None else asdict(found)


if __name__ == "__main__":
    sys.exit(main())
