"""Precisions that this CPU has instructions for."""

from __future__ import annotations

from iosched.models.errors import UsageError
from iosched.runtime.processor import read_processor
from iosched.scheduler.precision import CPU_PRECISIONS, DEFAULT_PRECISION

_INSTRUCTIONS = {"bf16": "avx512_bf16", "fp16": "avx512_fp16"}
"""By precision, Linux's name of the instructions that multiply in it."""


def precisions() -> tuple[str, ...]:
    """The precisions that this CPU has instructions for."""
    found = read_processor().instructions.split()
    return tuple(each for each in CPU_PRECISIONS if each == DEFAULT_PRECISION or _INSTRUCTIONS[each] in found)


def check_precision(precision: str) -> None:
    """Check that models can run in a precision on this CPU.

    onnxruntime's kernels multiply in the model's own types; other precisions need OpenVINO, else this raises
    `DeviceError`.

    Raises:
        UsageError: CPUs lack the precision, or this one lacks instructions for it.
    """
    if precision not in CPU_PRECISIONS:
        raise UsageError(f"CPUs do not compute in {precision}: use --precision {', '.join(CPU_PRECISIONS)}")
    if precision not in precisions():
        raise UsageError(
            f"{read_processor().name} has no {precision} instructions ({_INSTRUCTIONS[precision]}),"
            f" so {precision} would be slower: omit --precision"
        )
    if precision != DEFAULT_PRECISION:
        from iosched.runtime.openvino.library import library

        library()
