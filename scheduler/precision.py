"""How a GPU stores and multiplies floats, by name: a schedule is made for one precision."""

from __future__ import annotations

from typing import Literal, get_args

from iosched.models.errors import UsageError

PrecisionName = Literal["fp32", "tf32", "fp16"]
"""Strict float32; float32 that tensor cores round to 10 bits when they multiply; float16 throughout."""

PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
DEFAULT_PRECISION: PrecisionName = "fp32"


def precision_named(text: str) -> PrecisionName:
    """The precision of that name.

    Raises:
        UsageError: there is none.
    """
    for known in PRECISIONS:
        if known == text:
            return known
    raise UsageError(f"unknown precision {text!r}: give {', '.join(PRECISIONS)}")
