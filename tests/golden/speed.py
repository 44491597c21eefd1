"""Compares how fast two trees of iosched run, open and start: eight networks on a CPU, interleaved.

    python tests/golden/speed.py BEFORE AFTER [--rounds 15] [--results F.json]

BEFORE and AFTER are Pythons with one of the trees installed. Each round runs every call once in each tree, in random
order. A ratio is BEFORE / AFTER by rounds, its median with a 95 % interval from order statistics (no assumption on the
noise): above 1 the tree after is faster, or takes less memory. Exit code 1: a ratio is clearly below 0.98.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from pathlib import Path
from random import Random
from statistics import median

NETWORKS = ("squeezenet", "googlenet", "resnet50", "densenet121", "inception_v3", "randwire", "nasnet_a", "bert_mini")
LEAST_RATIO = 0.98
_RUNS = 15
_LEVEL = 0.05
Samples = dict[str, dict[str, list[float]]]


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--results", type=Path, help="where to write the samples")
    options = parser.parse_args()
    trees = {"before": options.before.absolute(), "after": options.after.absolute()}
    os.environ["IOSCHED_PROFILE_DB"] = ":memory:"
    samples: Samples = defaultdict(lambda: {tree: [] for tree in trees})
    with tempfile.TemporaryDirectory(prefix="golden-speed-") as name:
        prepare(trees["before"], Path(name))
        random = Random(0)
        for _ in range(options.rounds):
            for call in (*NETWORKS, "--help", "import iosched"):
                for tree in random.sample(list(trees), 2):
                    for what, value in timed(trees[tree], call, Path(name)):
                        samples[what][tree].append(value)
    rows = {what: ratio(found["before"], found["after"]) for what, found in samples.items()}
    for what, (middle, low, high) in rows.items():
        print(f"{what:<34}{middle:.3f} ({low:.3f} to {high:.3f})")
    if options.results:
        options.results.write_text(json.dumps({"processor": platform.processor(), "samples": samples}, indent=1))
    slower = [what for what, (_, _, high) in rows.items() if high < LEAST_RATIO]
    if slower:
        sys.exit(f"clearly below {LEAST_RATIO}: {', '.join(slower)}")


def prepare(python: Path, folder: Path) -> None:
    """Writes the networks, and the schedules by which both trees run them."""
    for network in NETWORKS:
        words = ["optimize", f"zoo:{network}", "--device", "v100", "-q", "-o", f"{network}.onnx"]
        subprocess.run([python, "-m", "iosched", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def timed(python: Path, call: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Measurements of one process, by name: latency, time to open, memory; for a start, only its time."""
    words = ["-m", "iosched", *f"run {call}.onnx --device cpu --threads 2 --repeat {_RUNS} --json".split()]
    if call not in NETWORKS:
        words = ["-c", call] if call.startswith("import") else ["-m", "iosched", call]
    began = time.perf_counter()
    child = subprocess.Popen([python, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{call}: exit code {child.returncode}")
    if call not in NETWORKS:
        yield call, wall_s
        return
    latencies: Mapping[str, Sequence[float]] = json.loads(said)["latency_us"]
    yield f"{call}: run", median(latencies["samples"])
    yield f"{call}: open", wall_s - sum(latencies["samples"]) / 1e6
    yield f"{call}: memory", used.ru_maxrss


def ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios by rounds, and its 95 % interval from order statistics."""
    ratios = sorted(first / second for first, second in zip(before, after, strict=True))
    n = len(ratios)
    outside = 0
    while sum(comb(n, k) for k in range(outside + 1)) / 2**n <= _LEVEL / 2:
        outside += 1
    first = max(outside - 1, 0)
    return median(ratios), ratios[first], ratios[n - 1 - first]


if __name__ == "__main__":
    main()
