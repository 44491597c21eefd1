"""Which precisions a GPU has."""

from __future__ import annotations

from iosched.models.errors import UsageError
from iosched.scheduler.precision import ALL_PRECISIONS, PRECISIONS, PrecisionName, precision_named


def precision_on(gpu_name: str, precision: str, *, has_tf32: bool) -> PrecisionName:
    """The precision of that name, for a GPU that has it.

    Args:
        gpu_name: what people call the GPU.
        has_tf32: whether its tensor cores multiply floats.

    Raises:
        UsageError: there is no such precision, or none on this GPU; the text says which there are.
    """
    if precision not in PRECISIONS and precision in ALL_PRECISIONS:
        raise UsageError(f"{gpu_name} does not run in {precision}: optimize with --precision {', '.join(PRECISIONS)}")
    found = precision_named(precision)
    if found == "tf32" and not has_tf32:
        raise UsageError(
            f"{gpu_name} has no tf32, which begins with compute capability 8.0: optimize with --precision fp32 or fp16"
        )
    return found
