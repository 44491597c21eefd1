"""Memory of this machine, and whether a model fits."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from iosched.models.errors import DeviceError
from iosched.models.graph import ComputationGraph, TensorSpec
from iosched.runtime.cores import file_text

_CACHED_FILES = re.compile(r"^(?:active|inactive)_file (\d+)$", re.MULTILINE)


def machine_nbytes() -> int | None:
    """Total memory in bytes; None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def release_freed_memory() -> None:
    """Return freed memory to the system: the C library keeps the memory of large temporary objects."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def free_nbytes(machine: Path = Path("/")) -> int | None:
    """Bytes that processes may allocate before the system kills one; None if unknown.

    Reclaimable memory, such as cached files, counts as free. In a container, the control group's limit counts if it is
    mounted where Docker and Kubernetes mount it. `machine` is the root of the file system.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", file_text(machine / "proc/meminfo"), re.MULTILINE)
    group = machine / "sys/fs/cgroup"
    limit, used = (file_text(group / f"memory.{name}").strip() for name in ("max", "current"))
    found = [int(available[1]) * 1024] if available else []
    if limit.isdecimal() and used.isdecimal():
        files = sum(map(int, _CACHED_FILES.findall(file_text(group / "memory.stat"))))
        found.append(max(int(limit) - int(used) + files, 0))
    return min(found, default=None)


def check_fits(graph: ComputationGraph) -> None:
    """Refuse a model that cannot run in the free memory, before any is allocated; O(operators).

    The operands and results of an operator are in memory together, and so are the inputs and outputs of the model.
    Weights are in memory already, or mapped from a file.
    """
    together = [(*operator.inputs, *operator.outputs) for operator in graph.operators]
    together.append((*(spec.name for spec in graph.inputs), *graph.outputs))
    needed = max(sum(graph.tensor[name].nbytes for name in names if name in graph.tensor) for names in together)
    _check(needed, "one operator of this model needs", free_nbytes())


def check_inputs_fit(specs: Iterable[TensorSpec]) -> None:
    """Refuse random inputs that exceed the free memory, before it is allocated."""
    _check(sum(spec.nbytes for spec in specs), "the inputs of this model need", free_nbytes())


def _check(nbytes: int, subject: str, free: int | None) -> None:
    if free is not None and nbytes > free:
        raise DeviceError(
            f"out of memory: {subject} {nbytes / 1e9:,.1f} GB, but this machine has {free / 1e9:,.1f} GB free.\n"
            "Use a smaller --batch-size or --input-shape, or a machine with more memory."
        )
