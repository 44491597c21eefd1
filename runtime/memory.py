"""How much memory this machine has, and whether a model can be run in what is left of it."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from iosched.models.errors import DeviceError
from iosched.models.graph import ComputationGraph, TensorSpec

_COPIES_OF_FILES = re.compile(r"^(?:active|inactive)_file (\d+)$", re.MULTILINE)


def machine_nbytes() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def give_back() -> None:
    """Returns freed memory to the system, where the C library can: it keeps what a large temporary object had."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def free_nbytes(machine: Path = Path("/")) -> int | None:
    """Bytes that processes may still take before the system ends one of them; None where it does not say.

    Those that the kernel gives up when they are asked for, such as copies of files, count as free. A container has what
    its control group leaves, as far as that is mounted where Docker and Kubernetes mount it.

    Args:
        machine: the folder that stands for the root of the file system.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(machine / "proc/meminfo"), re.MULTILINE)
    group = machine / "sys/fs/cgroup"
    limit, used = (_text(group / f"memory.{name}").strip() for name in ("max", "current"))
    found = [int(available[1]) * 1024] if available else []
    if limit.isdecimal() and used.isdecimal():
        files = sum(map(int, _COPIES_OF_FILES.findall(_text(group / "memory.stat"))))
        found.append(max(int(limit) - int(used) + files, 0))
    return min(found, default=None)


def check_fits(graph: ComputationGraph) -> None:
    """Refuses a model that cannot be run here whatever runs it, before memory is taken for it; O(operators).

    What an operator reads and writes is in memory together, and so are all inputs and outputs of the model. Weights are
    not counted: they are in memory already, or mapped from a file.

    Raises:
        DeviceError: that is more than is free.
    """
    together = [(*operator.inputs, *operator.outputs) for operator in graph.operators]
    together.append((*(spec.name for spec in graph.inputs), *graph.outputs))
    needed = max(sum(graph.tensor[name].nbytes for name in names if name in graph.tensor) for names in together)
    _check(needed, "one operator of this model needs", free_nbytes())


def check_inputs_fit(specs: Iterable[TensorSpec]) -> None:
    """Refuses inputs that cannot be made up here, before memory is taken for them.

    Raises:
        DeviceError: they take more memory than is free.
    """
    _check(sum(spec.nbytes for spec in specs), "the inputs of this model need", free_nbytes())


def _check(nbytes: int, what: str, free: int | None) -> None:
    if free is not None and nbytes > free:
        raise DeviceError(
            f"out of memory: {what} {nbytes / 1e9:,.1f} GB, but this machine has {free / 1e9:,.1f} GB free.\n"
            "Use a smaller --batch-size or --input-shape, or a machine with more memory."
        )


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
