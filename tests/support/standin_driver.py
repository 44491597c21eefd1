"""A `libcuda.so.1` that reports GPUs that are not there, as the driver's library would, compiled from C++.

Its answers are in the environment: STANDIN_CUDA ("12040"), STANDIN_GPUS ("Tesla V100-SXM2-16GB:70,NVIDIA L4:89"), and
STANDIN_STATUS, with which it refuses to start.
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from iosched.runtime.cuda.gpu import extras

_SOURCE = Path(__file__).parent / "host_cuda_include" / "attached_gpus.cpp"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="iosched-driver-")


@cache
def compiled(source: str) -> Path:
    """The library."""
    path = Path(_folder().name) / f"{abs(hash(source))}" / "libcuda.so.1"
    path.parent.mkdir()
    command = ["g++", "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def install(monkeypatch: pytest.MonkeyPatch, *gpus: str, cuda: int = 13000, status: int = 0) -> None:
    """Makes it the library of this machine's driver.

    Args:
        gpus: as "NAME:CAPABILITY".
        cuda: newest CUDA that the driver supports.
        status: with which it refuses to start.
    """
    monkeypatch.setattr(extras, "LIBRARY", str(compiled(_SOURCE.read_text())))
    monkeypatch.setenv("STANDIN_CUDA", str(cuda))
    monkeypatch.setenv("STANDIN_GPUS", ",".join(gpus))
    monkeypatch.setenv("STANDIN_STATUS", str(status))


def none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this a machine without a driver."""
    monkeypatch.setattr(extras, "LIBRARY", "libcuda-of-no-machine.so.1")
