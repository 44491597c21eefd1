"""Everything on one GPU: correctness of every network and strategy, then latencies beside what people use today.

    python benchmarks/gpu.py                    # under ten minutes; a table last, raw samples to results/
    python benchmarks/gpu.py --networks squeezenet,inception_v3 --batch-sizes 1 --precisions fp32

Every alternative is one CUDA graph, or what its framework makes of it; all of one network, batch size and precision are
measured in turn, A B C A B C. Needs what the extra [cuda] installs, and PyTorch for the alternatives that it is.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iosched.models import zoo
from iosched.models.errors import DeviceError, IoschedError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.cuda_cost import CudaStageCost
from iosched.profiler.cuda_device import AttachedGpu, attach
from iosched.profiler.database import ProfileDatabase
from iosched.profiler.effort import GPU_EFFORT
from iosched.profiler.interleave import interleave
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import search

RESULTS = Path(__file__).parent / "results"
NETWORKS = "squeezenet,inception_v3,randwire,nasnet_a"
LIMITS = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}
_QUERY = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_throttle_reasons.active"


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
    report = {"gpu": gpu.name, "versions": _versions(gpu), "state": [_state()], "cases": []}
    rows: list[str] = []
    for case in _cases(options):
        if time.monotonic() > deadline:
            print(f"out of time before {case}", file=sys.stderr)
            break
        try:
            found = run_case(gpu, case, options, deadline)
        except IoschedError as error:
            found = {"error": str(error)}
        report["cases"].append({**vars(case), **found})
        report["state"].append(_state())
        rows.append(_row(case, found))
        print(rows[-1], file=sys.stderr, flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{gpu.name}; latency in us (median), error, and times as fast as the sequential CUDA graph")
    print("\n".join(rows))
    return 0


def run_case(gpu: AttachedGpu, case: Case, options: argparse.Namespace, deadline: float) -> dict[str, object]:
    """Searches, checks and measures one case."""
    model = load_model(zoo.build(case.network).SerializeToString(), name=case.network, batch_size=case.batch)
    backend = gpu.backend(model, case.precision)
    found, searches = _schedules(gpu, backend, options)
    inputs = random_inputs(model.graph.inputs, seed=case.batch)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    runs: dict[str, Callable[[], float]] = {}
    errors: dict[str, float] = {}
    kernels: dict[str, int] = {}
    for name, (schedule, barriers) in found.items():
        compiled = backend.compile(schedule, barriers=barriers)
        compiled.executor.poison()
        errors[name] = _relative_error(compiled.run(inputs), expected)
        kernels[name] = compiled.kernel_count
        runs[name] = lambda compiled=compiled: compiled.executor.time_launches(1)[0]
    peers, missing = _torch_peers(model, inputs, case, options)
    measured = interleave({**runs, **peers}, options.rounds, warmup=5, max_seconds=max(deadline - time.monotonic(), 1))
    return {
        "relative_error": errors,
        "correct": all(error < LIMITS[case.precision] for error in errors.values()),
        "kernels": kernels,
        "search": searches,
        "missing": missing,
        "roofline_us": _roofline_us(model, case.precision),
        "median_us": {name: round(each.median_us, 2) for name, each in measured.items()},
        "samples_us": {name: [round(sample, 2) for sample in each.samples_us] for name, each in measured.items()},
    }


def _schedules(
    gpu: AttachedGpu, backend: CudaBackend, options: argparse.Namespace
) -> tuple[dict[str, tuple[Schedule, bool]], dict[str, object]]:
    graph = backend.graph
    found = {"sequential": (sequential(graph), True), "greedy": (greedy(graph), True)}
    searches: dict[str, object] = {}
    with ProfileDatabase(options.profile_db) as database:
        for strategy in ("merge", "concurrent", "both"):
            cost = CudaStageCost(backend, database, gpu.key(backend.precision.name))
            started = time.monotonic()
            result = search(graph, cost, strategy=strategy, effort=GPU_EFFORT)
            found[strategy] = (result.schedule, True)
            searches[strategy] = {
                "seconds": round(time.monotonic() - started, 2),
                "measurements": cost.measurements,
                "signatures": cost.signatures,
                "predicted_us": result.schedule.predicted_us,
                "gap": result.gap,
                "dropped": cost.dropped,
            }
    found["both, no barriers"] = (found["both"][0], False)
    return found, searches


def _torch_peers(
    model: Model, inputs: Mapping[str, np.ndarray], case: Case, options: argparse.Namespace
) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    if options.no_torch:
        return {}, {}
    try:
        from torch_peers import peers
    except ImportError as error:
        return {}, {"torch": str(error)}
    return peers(model, inputs, case.precision, compiles=case.batch == 1 and not options.no_compile)


def _roofline_us(model: Model, precision: str) -> dict[str, float]:
    """Microseconds that arithmetic and memory traffic alone take at the specified peaks of an H100 SXM."""
    flops = sum(operator.flops for operator in model.graph.operators)
    item = 0.5 if precision == "fp16" else 1.0
    moved = item * sum(operator.nbytes for operator in model.graph.operators)
    peak = {"fp32": 67e12, "tf32": 495e12, "fp16": 990e12}[precision]
    return {"arithmetic": flops / peak * 1e6, "memory": moved / 3.35e12 * 1e6}


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
    base = medians["sequential"]
    cells = [f"{name} {value:.0f} ({base / value:.2f}x)" for name, value in medians.items()]
    errors = found["relative_error"]
    assert isinstance(errors, dict)
    return f"{title} {'ok' if found['correct'] else 'WRONG'} {max(errors.values()):.0e} | " + " | ".join(cells)


def _cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(network, int(batch), precision)
        for precision in options.precisions.split(",")
        for batch in options.batch_sizes.split(",")
        for network in options.networks.split(",")
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=NETWORKS, help="comma-separated names from `iosched zoo list`")
    parser.add_argument("--batch-sizes", default="1,16,64")
    parser.add_argument("--precisions", default="fp32,fp16")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=560, help="begin no further case after so long")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--profile-db", type=Path, default=None)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes minutes")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "gpu.json")
    return parser.parse_args()


def _versions(gpu: AttachedGpu) -> dict[str, str]:
    return {**gpu.versions, "python": platform.python_version()}


def _state() -> str:
    """Clocks, temperature and throttling as the driver tells them now."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


if __name__ == "__main__":
    sys.exit(main())
