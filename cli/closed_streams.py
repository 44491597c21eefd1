"""Stands in for standard streams that were closed when the process began (`iosched ... >&-`)."""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def replace_closed_streams() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that Python found closed.

    Otherwise the next file that is opened, such as the profile database, would get the stream's number, and what
    libraries print would be written into it.
    """
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
