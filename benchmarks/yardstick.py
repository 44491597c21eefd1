"""Whether the calibration kernel shows the speed of the machine: variation of stage latencies with and without it.

    python benchmarks/yardstick.py [--seconds 100] [-o F.json]

Three stages of Inception V3 run interleaved for this time, each as ten runs between two runs of the kernel. The
variation is the standard deviation of the logarithm of a stage's medians, with and without correction.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np
from command_line import read_options
from result_tables import print_table
from results_files import write_results
from testbed import zoo_model

from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel, kernel_runs
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.processor import cpu_name
from iosched.scheduler.schedule import Stage, Strategy

RUNS = 10
STAGES = {
    "one convolution": (("mixed_6a/branch3x3/conv1_3x3",),),
    "two groups": (
        ("mixed_6c/branch7x7/conv2_1x7", "mixed_6c/branch7x7/conv3_7x1"),
        ("mixed_6c/branch7x7dbl/conv2_7x1", "mixed_6c/branch7x7dbl/conv3_1x7"),
    ),
    "pooling": (("mixed_6b/branch_pool/pool",),),
}


def main() -> None:
    options = read_options(__file__, networks="inception_v3", seconds=100.0, output=Path)
    with CpuBackend(zoo_model(options.networks)) as backend:
        found = observe(backend, options.seconds)
    rows = [(name, *(f"{variation(values):.3f}" for values in both)) for name, *both in summary(found)]
    print_table(("stage", "variation", "corrected by the yardstick"), rows)
    write_results(options, {"device": cpu_name(), "samples_us": found})


def observe(backend: CpuBackend, seconds: float) -> dict[str, list[dict[str, list[float]]]]:
    """For each stage, its runs and the adjacent runs of the calibration kernel, visit by visit."""
    calibration = compile_calibration_kernel(backend)
    stages = {name: backend.compile_stage(Stage(Strategy.CONCURRENT, groups)) for name, groups in STAGES.items()}
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in stages}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, stage in stages.items():
            assert stage is not None
            before = kernel_runs(calibration.time)
            runs = stage.time(RUNS)
            kernel = [*before, *kernel_runs(calibration.time)]
            found[name].append({"stage": [round(us, 1) for us in runs], "yardstick": [round(us, 1) for us in kernel]})
    return found


def summary(found: dict[str, list[dict[str, list[float]]]]) -> list[tuple[str, list[float], list[float]]]:
    """For each stage its medians, as they are and over those of the calibration kernel."""
    rows = []
    for name, visits in found.items():
        plain = [median(visit["stage"]) for visit in visits]
        kernel = [median(visit["yardstick"]) for visit in visits]
        rows.append((name, plain, [us / slow for us, slow in zip(plain, kernel, strict=True)]))
    return rows


def variation(values: list[float]) -> float:
    return float(np.std(np.log(values)))


if __name__ == "__main__":
    main()
