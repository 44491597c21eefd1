"""Which process wrote something, and whether it still lives: what Linux tells in /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Places among the fields of /proc/PID/stat behind the command, which stands in parentheses and may hold spaces."""

_ENDED = ("Z", "X")
"""States of a process that nobody has waited for yet."""


def this_process() -> str:
    """A text that no other process has: this start of the machine, the namespace of numbers, the number, its start."""
    return " ".join((*_numbered_by(), str(os.getpid()), _started(os.getpid()) or ""))


def is_alive(process: str) -> bool | None:
    """Whether the process of `this_process` lives; None where that cannot be told, as in another container."""
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
    """What a process's number holds in: this start of the machine, and this namespace; empty on other systems."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return boot, str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return "", ""


def _started(number: int) -> str | None:
    """When the process began, in ticks since the machine did; None where there is none, or one that has ended."""
    try:
        text = (_PROC / str(number) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in _ENDED else fields[_STARTED]
