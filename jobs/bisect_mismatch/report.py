"""Says to people which operator is the first to differ, what that means, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from iosched.jobs.bisect_mismatch.difference import FirstDifference, Place
from iosched.runtime.faults import REPORT

_SHOWN = 4
"""As many names are listed; of more, their number is given."""

_ADVICE = {
    "runtime": "Given just what it read, onnxruntime computes something else: it is run wrongly here. Until that is "
    "mended, 'iosched optimize --strategy sequential' may avoid it, and plain onnxruntime does. " + REPORT,
    "model": "onnxruntime computes the same from this file, and something else from the original: the file has other "
    "weights, attributes or wiring here. Optimize the original again. If that does not help: " + REPORT,
    "rounding": "Given just what it read, onnxruntime computes the same: no operator is wrong, small differences have "
    "added up until here. Judge by the model's results, such as its accuracy, whether they matter.",
    None: "Whether it alone is wrong could not be tried. " + REPORT,
}


def sentence(found: FirstDifference) -> str:
    """One sentence that names the operator and says how far off it is."""
    which = f"the first operator that differs is {found.type} {found.operator!r}{_where(found.place)}"
    if found.unseen:
        which += f", or one before it that cannot be looked at apart ({_names(found.unseen)})"
    read = "" if found.inputs_max_rel is None else f"; what it reads is off by {found.inputs_max_rel:.3g} of its scale"
    return f"{which}: {found.reason.replace('output', 'its result', 1)}{read}"


def lines(found: FirstDifference | None) -> tuple[str, ...]:
    """All that there is to say, a sentence or two in each line; None means that no operator was found."""
    if found is None:
        return ("In another run the outputs were right: as where threads race for memory. " + REPORT,)
    text = sentence(found)
    said = [f"{text[0].upper()}{text[1:]}."]
    if not found.is_complete:
        said.append(f"The search ended after {found.looks} runs.")
    if found.vanishes:
        said.append(
            "It is gone where tensors in between are kept: as where a kernel is wrong that runs several operators as "
            "one, or where memory is reused too early. " + REPORT
        )
    elif found.is_complete:
        said.append(_ADVICE[found.cause])
    return tuple(said)


def mismatch_text(reasons: Sequence[str], found: FirstDifference | None) -> str:
    """The error that outputs differ: which do, in two lines, and then the first operator that does."""
    few = list(reasons) if len(reasons) <= 1 else [f"{reasons[0]}; and {len(reasons) - 1} more"]
    return "\n".join(["outputs differ from onnxruntime's:", *few, *lines(found)])


def _where(place: Place | None) -> str:
    if place is None:
        return ""
    as_one = f", as one with {_names(place.as_one_with)}" if place.as_one_with else ""
    return f" (stage {place.stage + 1}, group {place.group + 1}{as_one})"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
