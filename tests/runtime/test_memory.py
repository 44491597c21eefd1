"""Free memory, read from files of machines and containers, and models that do not fit."""

from __future__ import annotations

import ctypes
import os
import platform
from itertools import pairwise
from pathlib import Path

import pytest

from iosched.models.errors import DeviceError
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.runtime import memory
from iosched.runtime.memory import check_fits, check_inputs_fit, free_nbytes

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\n"
STAT = "anon 1000\nfile 3900\ninactive_file 2000\nactive_file 1000\nworkingset_refault_file 7\n"


def machine(top: Path, **files: str) -> Path:
    for name, text in files.items():
        path = top / {"meminfo": "proc/meminfo"}.get(name, f"sys/fs/cgroup/memory.{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


@pytest.mark.parametrize(
    ("files", "nbytes"),
    [
        ({"meminfo": MEMINFO}, 800 * 1024),
        ({"meminfo": MEMINFO, "max": "max\n", "current": "5\n"}, 800 * 1024),
        ({"meminfo": MEMINFO, "max": "5000\n", "current": "1000\n"}, 4000),
        ({"meminfo": MEMINFO, "max": "5000\n", "current": "6000\n"}, 0),
        ({"meminfo": MEMINFO, "max": "5000\n", "current": "4900\n", "stat": STAT}, 3100),
        ({"meminfo": "nothing that is known\n"}, None),
        ({}, None),
    ],
)
def test_free_memory(tmp_path: Path, files: dict[str, str], nbytes: int | None) -> None:
    assert free_nbytes(machine(tmp_path, **files)) == nbytes


def chain(*sizes: int) -> ComputationGraph:
    """A chain of operators, on tensors of these numbers of floats."""
    specs = tuple(TensorSpec(f"t{at}", "float32", (size,)) for at, size in enumerate(sizes))
    operators = tuple(
        Operator(after.name, "Relu", (after.name,), (before.name,), (after.name,)) for before, after in pairwise(specs)
    )
    return ComputationGraph("chain", specs[:1], (specs[-1].name,), operators, specs[1:])


def test_a_model_fits_if_its_largest_operator_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_nbytes", lambda: 4 * 30)
    check_fits(chain(10, 20, 10, 20, 10))
    with pytest.raises(DeviceError, match=r"out of memory[\s\S]*--batch-size"):
        check_fits(chain(10, 20, 11, 20, 1))


def test_inputs_and_outputs_must_fit_in_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_nbytes", lambda: 4 * 30)
    with pytest.raises(DeviceError, match="out of memory"):
        check_fits(chain(16, 1, 1, 15))


def test_generated_inputs_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_nbytes", lambda: 80)
    specs = chain(10, 10).inputs
    check_inputs_fit((*specs, *specs))
    with pytest.raises(DeviceError, match="the inputs of this model"):
        check_inputs_fit((*specs, *specs, *specs))


def test_no_model_is_refused_if_free_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_nbytes", lambda: None)
    check_fits(chain(2**60, 2**60))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only this C library can")
def test_freed_memory_is_released() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(1 << 16) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 16)
    for block in blocks[:-1]:  # the last one keeps the C library from doing it by itself
        libc.free(block)
    before = _resident_nbytes()
    memory.release_freed_memory()
    libc.free(blocks[-1])
    assert before - _resident_nbytes() > 32 << 20


def _resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_c_library_that_cannot_release_memory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    memory.release_freed_memory()
