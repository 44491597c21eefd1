"""Has msgspec read the annotations of classes before values of them are: by one thread at a time."""

from __future__ import annotations

from threading import Lock
from typing import Any

import msgspec

_ONE_AT_A_TIME = Lock()


def prepare(*kinds: Any) -> None:
    """Call where classes have been defined of which values are to be read; takes microseconds the second time.

    msgspec reads the annotations of a class when it first meets it, and where another thread meets it meanwhile the
    process ends with a segmentation fault (msgspec 0.22).

    Args:
        kinds: classes, or what stands for them in annotations, with all that they consist of.
    """
    with _ONE_AT_A_TIME:
        for kind in kinds:
            msgspec.json.Decoder(kind)
