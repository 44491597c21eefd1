"""Latency of the benchmark networks on this machine's cores: our schedules, plain onnxruntime and OpenVINO.

    python benchmarks/cpu_networks.py [--networks squeezenet,...] [--batch-size N] [--rounds N] [-o results.json]

For each network `optimize` searches and decides what to ship; then everything is measured in one run, in turn
A B C A B C, and every sample is written to the results file with the machine and the versions. `iosched` is what
`optimize` shipped; `onnxruntime` is its best setting of sequential and parallel mode and threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

from testbed import compared, speedup_text

from iosched.jobs.bench import BenchResult, bench
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.models.load import load_model
from iosched.models.zoo import build
from iosched.profiler.devices.cpu.processor import cpu_name

NETWORKS = ("squeezenet", "inception_v3", "googlenet", "randwire", "nasnet_a", "resnet50", "densenet121")
ALTERNATIVES = ("iosched", "sequential", "greedy", "both", "onnxruntime", "openvino")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    options = _options()
    found = {}
    for name in options.networks.split(","):
        model = load_model(build(name).SerializeToString(), name=name, batch_size=options.batch_size)
        started = time.monotonic()
        result = optimize(model, OptimizeSettings(threads=options.threads, profile_db=options.profile_db))
        measured = bench(
            model,
            result.document,
            names=ALTERNATIVES,
            threads=options.threads,
            rounds=options.rounds,
            profile_db=options.profile_db,
        )
        found[name] = _entry(result, measured)
        print(_line(name, measured, result, time.monotonic() - started), flush=True)
        options.output.write_text(json.dumps(_report(options, found), indent=1) + "\n", encoding="utf-8")
    print(f"raw samples: {options.output}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated names from `iosched zoo list`")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None, help="cores to use; all by default")
    parser.add_argument("--rounds", type=int, default=25, help="samples of each alternative")
    parser.add_argument("--profile-db", type=Path, default=None)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "cpu_networks.json")
    return parser.parse_args()


def _entry(result: OptimizeResult, measured: BenchResult) -> dict[str, object]:
    return {
        "shipped": result.shipped,
        "optimal": result.optimal,
        "predicted_us": result.predicted_us,
        "search": {
            "seconds": result.seconds,
            "stages": result.stages,
            "signatures": result.signatures,
            "measurements": result.measurements,
            "cache_hits": result.cache_hits,
        },
        "missing": dict(measured.missing),
        "samples_us": {name: [round(s, 1) for s in samples] for name, samples in measured.samples_us.items()},
        "median_us": {row.name: round(row.median_us, 1) for row in measured.rows},
    }


def _report(options: argparse.Namespace, found: dict[str, object]) -> dict[str, object]:
    return {
        "command": "python benchmarks/cpu_networks.py " + " ".join(sys.argv[1:]),
        "machine": {
            "processor": cpu_name(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "versions": {name: _version(name) for name in ("onnxruntime", "openvino", "onnx", "numpy")},
        "batch_size": options.batch_size or 1,
        "networks": found,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _line(name: str, measured: BenchResult, result: OptimizeResult, seconds: float) -> str:
    """One row: medians, and every alternative's speed-up over plain onnxruntime."""
    against = compared(measured.samples_us, "onnxruntime")
    cells = [f"{row.name} {row.median_us / 1e3:.2f} ms{speedup_text(against.get(row.name))}" for row in measured.rows]
    return f"{name:14s} shipped {result.shipped:10s} {seconds:6.0f} s | " + " | ".join(cells)


if __name__ == "__main__":
    main()
