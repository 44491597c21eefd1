"""One check of whether a device works, which needs nothing from the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iosched.models.errors import MismatchError
from iosched.models.model import Model
from iosched.runtime.compare import Check, compare
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference


@dataclass(frozen=True)
class SelfCheck:
    """A check that tries one thing on a device.

    Attributes:
        part: the part of the runtime that the check belongs to, such as "kernels".
        name: names the check within its part.
        run: runs the check, and returns what it found in a few words. Raises `MismatchError` if numbers are wrong, and
            other errors if something fails.
    """

    part: str
    name: str
    run: Callable[[], str]


def passed(check: Check) -> str:
    """Says how far off the numbers were that a check compared.

    Raises:
        MismatchError: the numbers differ.
    """
    if not check.passed:
        raise MismatchError("; ".join(check.reasons))
    return f"off by {check.max_rel:.1e} of the largest number" if check.max_rel else "exact"


def worst(checks: Iterable[Check]) -> Check:
    """The check that did not pass, or else the one that was off most."""
    return max(checks, key=lambda check: (not check.passed, check.max_rel))


def agrees_with_onnxruntime(model: Model, run: Callable[[Arrays], Arrays], *, runs: int = 1) -> str:
    """Runs a model on random inputs, and says how far off its outputs are from those of plain onnxruntime.

    Args:
        run: runs the model once.
        runs: how many runs are compared.

    Raises:
        MismatchError: the outputs of a run differ.
        DeviceError: onnxruntime is not installed.
        ExecutionError: the model fails.
    """
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    return passed(worst(compare(run(inputs), expected) for _ in range(runs)))
