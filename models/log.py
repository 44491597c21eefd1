"""The loggers of iosched, all below `iosched`: silent, unless who uses the library gives one of them a handler."""

from __future__ import annotations

import logging

ROOT = "iosched"

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def logger(module: str) -> logging.Logger:
    """The logger of a module, by the module's `__name__`."""
    return logging.getLogger(module)
