"""Identifies processes and whether they still run, by /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Positions in /proc/PID/stat after the command, which is in parentheses and may contain spaces."""

_ENDED = ("Z", "X")
"""States of ended processes that nobody has waited for."""


def this_process() -> str:
    """A unique text: boot, namespace of process numbers, number, and start time."""
    return " ".join((*_numbered_by(), str(os.getpid()), _started(os.getpid()) or ""))


def is_alive(process: str) -> bool | None:
    """Whether the process of `this_process` runs; None if unknown, as in another container."""
    if not process:
        return False
    boot, namespace, number, started = (process.split(" ") + [""] * 4)[:4]
    own_boot, own_namespace = _numbered_by()
    if boot != own_boot:
        return False
    if not own_boot or namespace != own_namespace:
        return None
    return _started(int(number)) == started


def _numbered_by() -> tuple[str, str]:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return boot, str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return "", ""


def _started(number: int) -> str | None:
    try:
        text = (_PROC / str(number) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in _ENDED else fields[_STARTED]
