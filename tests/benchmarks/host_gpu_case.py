"""The process of a case of `benchmarks/gpu.py` on a GPU made of host memory, where every network is a small one.

    python host_gpu_case.py FOLDER CASE ...     # CASE and what follows is for `benchmarks/gpu_case.py`

Files in FOLDER say what goes wrong. "abort NETWORK" ends the process when its search begins, "lost NETWORK" loses the
GPU then, and "hang NETWORK" does not come back, once each; "no GPU" is that there is none.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("tests/support", "benchmarks")]

import gpu_alternatives
import gpu_case
from gpu_cases import NetworkCase, case_of
from host_gpu import HostGpu, LaunchGap
from scripted import fire_proto

from iosched.models import zoo
from iosched.models.errors import DeviceError, DeviceLostError
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.scheduler.search import search


def main(folder: Path, words: list[str]) -> int:
    case = case_of(words[0])
    assert isinstance(case, NetworkCase)

    def troubled(*given: Any, **named: Any) -> Any:
        if _takes(folder / f"abort {case.network}"):
            os.abort()
        if _takes(folder / f"lost {case.network}"):
            raise DeviceLostError("an illegal address")
        if _takes(folder / f"hang {case.network}"):
            time.sleep(600)
        assert given[1].suggested_stages(), "as `optimize` does, a search begins with the analytic model's schedule"
        return search(*given, **named)

    def attached(index: int) -> AttachedGpu:
        if (folder / "no GPU").exists():
            raise DeviceError("no CUDA driver")
        name = folder / "name"
        return HostGpu(
            index, name.read_text() if name.exists() else "Host 1000", {"cudnn": "90"}, LaunchGap(gap_us=7.0)
        )

    zoo.build = lambda name: fire_proto()
    gpu_alternatives.search = troubled
    gpu_alternatives.ROUNDS = 6
    return gpu_case.main(words, attached)


def _takes(path: Path) -> bool:
    """Whether there was such a file, which there is no more."""
    if not path.exists():
        return False
    path.unlink()
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
