"""The loggers of iosched, all below `iosched`; silent unless the application adds a handler."""

from __future__ import annotations

import logging

ROOT = "iosched"

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def logger(module: str) -> logging.Logger:
    """The logger of a module, by its `__name__`."""
    return logging.getLogger(module)
