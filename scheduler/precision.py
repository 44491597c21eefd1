"""Names of precisions: how floats are stored and multiplied."""

from __future__ import annotations

from typing import Literal, get_args

from iosched.models.errors import UsageError

PrecisionName = Literal["fp32", "tf32", "fp16"]
"""Strict float32; float32 that tensor cores round to 10 bits when they multiply; float16 throughout."""

PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
"""The precisions of GPUs."""

CPU_PRECISIONS = ("fp32", "bf16", "fp16")
"""The precisions of CPUs with the instructions: 16-bit floats of either kind are summed as float32."""

ALL_PRECISIONS = (*PRECISIONS, "bf16")

DEFAULT_PRECISION: PrecisionName = "fp32"


def precision_named(text: str) -> PrecisionName:
    """The precision of that name; raises a UsageError if there is none."""
    for known in PRECISIONS:
        if known == text:
            return known
    raise UsageError(f"unknown precision {text!r}: choose {', '.join(PRECISIONS)}")
