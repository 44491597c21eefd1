"""The process of a case of `benchmarks/gpu.py` on the CUDA made of host memory, where networks and kernels are small.

    python desk_gpu_case.py FOLDER CASE ...     # CASE and what follows is for `benchmarks/gpu_case.py`

A file in FOLDER that is named after a fault of `FAULTS` and holds the key of a case injects the fault there, once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("tests/support", "benchmarks")]

import cudnn
import desk_cudnn
import desk_cupy
import gpu_case
import gpu_networks
import gpu_refit
import pytest
from desk_cuda import ILLEGAL_ADDRESS
from scripted import fire_proto
from small_models import branches

from iosched.models import zoo
from iosched.profiler.devices.cuda import gpu_checks
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES

DESK = desk_cupy.install()
NAME = b"NVIDIA H100 80GB HBM3"
KERNELS = [
    *(f"conv 1 {8 * n} 16 6 6 {tap} {tap} {tap // 2} {tap // 2} 1" for n in range(1, 5) for tap in (1, 3)),
    *(f"linear {n} 16 24" for n in range(1, 5)),
    *(f"{kind} 8 {16 * n}" for kind in ("add", "relu") for n in range(1, 4)),
    "bmm 2 8 8 8",
]


def _refuse_plans() -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise cudnn.cudnnGraphNotSupportedError("no engine")

    for name in ("check_support", "build_plan_at_index"):
        setattr(cudnn.pygraph, name, refused)


def _hang() -> None:
    check = DESK.check

    def waits(name: str) -> None:
        if name == "streamSynchronize":
            time.sleep(600)
        check(name)

    DESK.check = waits  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "kernel": lambda: DESK.fail("launchKernel", 1, after=3),
    "library": lambda: DESK.fail("cudnnBackendExecute", 1, after=3),
    "plan": _refuse_plans,
    "memory": lambda: setattr(DESK, "limit", 1 << 12),
    "hang": _hang,
    "lost": lambda: DESK.fail("streamSynchronize", ILLEGAL_ADDRESS, after=12),
    "abort": os.abort,
    "no GPU": lambda: setattr(DESK, "count", 0),
}


def main(folder: Path, words: list[str]) -> int:
    DESK.count = 1
    properties = DESK.get_device_properties
    DESK.get_device_properties = lambda index: {**properties(index), "name": NAME}  # type: ignore[method-assign]
    desk_cupy._replace(sys.modules["cupy_backends.cuda.api.runtime"], DESK, RuntimeError)
    desk_cudnn.install(pytest.MonkeyPatch(), DESK)
    zoo.build = lambda name: fire_proto()
    gpu_networks.light_model = lambda name: branches()
    gpu_networks.ROUNDS = 6
    gpu_refit.shapes, gpu_refit.LEAST = lambda: KERNELS, 30
    gpu_checks.SAMPLES = {name: SAMPLES[name] for name in ("AddN", "Slice")}
    gpu_checks.CUDNN_SAMPLES = {"Dense": CUDNN_SAMPLES["Dense"]}
    gpu_checks.light_model, gpu_checks._RUNS = lambda name: branches(), 2
    attach = gpu_case.Session.attach

    def attached(session: gpu_case.Session) -> Any:
        gpu = attach(session)
        for name, fault in FAULTS.items():
            if (path := folder / name).exists() and path.read_text() == session.case.key:
                path.unlink()
                fault()
        return gpu

    gpu_case.Session.attach = attached
    return gpu_case.main(words)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
