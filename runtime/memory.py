"""How much memory this machine has."""

from __future__ import annotations

import os


def machine_nbytes() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
