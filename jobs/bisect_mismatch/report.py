"""Texts about the first operator that differs, the cause, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from iosched.jobs.bisect_mismatch.difference import FirstDifference, SchedulePosition
from iosched.runtime.faults import REPORT

_SHOWN = 4
"""The number of names that are listed."""

_ADVICE = {
    "runtime": "From the same operator inputs, onnxruntime computes other values: iosched runs the operator wrongly. "
    "Until this is fixed, use plain onnxruntime, or try 'iosched optimize --strategy sequential'. " + REPORT,
    "model": "onnxruntime computes the same values from this file, but not from the original: weights, attributes or "
    "connections of the operator differ. Optimize the original again. If that does not help: " + REPORT,
    "rounding": "From the same operator inputs, onnxruntime computes the same values: no operator is wrong, small "
    "differences have accumulated. Check whether they affect the model's results, such as its accuracy.",
    None: "The operator could not be tested alone. " + REPORT,
}


def sentence(found: FirstDifference) -> str:
    """One sentence that names the operator and says how far off it is."""
    which = f"the first operator that differs is {found.type} {found.operator!r}{_where(found.place)}"
    if found.unseen:
        which += f", or one before it that cannot be inspected separately ({_names(found.unseen)})"
    read = "" if found.inputs_max_rel is None else f"; its inputs are off by {found.inputs_max_rel:.3g} of their scale"
    return f"{which}: {found.reason.replace('output', 'its result', 1)}{read}"


def lines(found: FirstDifference | None) -> tuple[str, ...]:
    """All that there is to say, a sentence or two in each line; None means that no operator was found."""
    if found is None:
        return ("In another run the outputs were correct, which suggests a race between threads. " + REPORT,)
    text = sentence(found)
    said = [f"{text[0].upper()}{text[1:]}."]
    if not found.is_complete:
        said.append(f"The search stopped after {found.looks} runs.")
    if found.vanishes:
        said.append(
            "The difference disappears when intermediate tensors are kept, which suggests a faulty fused kernel or "
            "memory that is reused too early. " + REPORT
        )
    elif found.is_complete:
        said.append(_ADVICE[found.cause])
    return tuple(said)


def mismatch_text(reasons: Sequence[str], found: FirstDifference | None) -> str:
    """The error that outputs differ: which do, in two lines, and then the first operator that does."""
    few = list(reasons) if len(reasons) <= 1 else [f"{reasons[0]}; and {len(reasons) - 1} more"]
    return "\n".join(["outputs differ from onnxruntime's:", *few, *lines(found)])


def _where(place: SchedulePosition | None) -> str:
    if place is None:
        return ""
    as_one = f", run as one with {_names(place.as_one_with)}" if place.as_one_with else ""
    return f" (stage {place.stage + 1}, group {place.group + 1}{as_one})"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
