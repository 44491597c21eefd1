"""Creates msgspec decoders under a lock, for thread safety."""

from __future__ import annotations

from threading import Lock
from typing import Any

import msgspec

_ONE_AT_A_TIME = Lock()


def prepare(*kinds: Any) -> None:
    """Call after defining classes that msgspec decodes; takes microseconds the second time.

    msgspec inspects a class at its first use; if two threads do so at once, the process crashes (msgspec 0.22).

    Args:
        kinds: classes or annotations; their parts are included.
    """
    with _ONE_AT_A_TIME:
        for kind in kinds:
            msgspec.json.Decoder(kind)
