"""Results of `iosched explore`: JSON object and table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.cli.common.json_objects import json_object
from iosched.cli.common.tables import print_columns, print_pairs
from iosched.cli.common.text import count_text, latency_text
from iosched.jobs.exploring.objectives import LATENCY

if TYPE_CHECKING:
    from iosched.jobs.exploring.explore_result import ExploreResult, Individual, StudyHistory

_STUDY = """
trials failed reused stopped running storage base=card.name space=card.space objectives constraints front others
failures left interrupted notes seconds
"""
_TRIAL = """
trial=number objectives params=choices values=feedback.values latencies=feedback.latencies seconds=feedback.seconds
"""
_MOST_REASONS = 3
_MOST_LEFT = 5


@dataclass(frozen=True)
class WrittenFiles:
    """Files of a variant, and the alternative that ships in them."""

    model: Path
    schedule: Path
    shipped: str


def left_in(folder: Path, written: Mapping[int, WrittenFiles]) -> Sequence[Path]:
    """Models of other trials in the folder, which this call has not written."""
    now = {each.model for each in written.values()}
    return sorted(path for path in folder.glob("trial-[0-9]*.onnx") if path not in now)


def as_object(
    found: StudyHistory, written: Mapping[int, WrittenFiles], result: ExploreResult | None, left: Sequence[Path] = ()
) -> dict[str, object]:
    """JSON object of `explore --json` and `explore show --json`.

    Args:
        result: of this call; None for `show`.
        left: models that earlier calls have written to the folder.
    """
    ranked = found.ranked()
    front = [each for rank, each in ranked if rank == 0]
    others = [each for rank, each in ranked if rank and each.number in written]
    failures = [each for each in found.individuals if each.state in ("failed", "stopped")]
    return json_object(
        found,
        _STUDY,
        trials=len(found.finished),
        **{state: found.count(state) for state in ("failed", "stopped", "running")},
        objectives=list(map(str, found.card.objectives)),
        constraints=list(map(str, found.card.constraints)),
        front=[_entry(each, found, written.get(each.number)) for each in front],
        others=[_entry(each, found, written.get(each.number)) for each in others],
        failures=[json_object(each, "trial=number reason=feedback.reason") for each in failures],
        left=left,
        interrupted=result is not None and result.was_interrupted,
        notes=() if result is None else result.notes,
        seconds=None if result is None else result.seconds,
    )


def _entry(each: Individual, found: StudyHistory, written: WrittenFiles | None) -> dict[str, object]:
    objectives = {objective.name: each.feedback.values[objective.name] for objective in found.card.objectives}
    files = json_object(written, "file=model schedule shipped")
    return {**json_object(each, _TRIAL, objectives=objectives), **files}


def print_found(found: StudyHistory, written: Mapping[int, WrittenFiles], *, to_stderr: bool) -> None:
    """Print the front, the other variants written, and the counts of trials."""
    names = found.card.names
    shown = [(rank, each) for rank, each in found.ranked() if rank == 0 or each.number in written]
    first = found.card.objectives[0]
    shown.sort(key=lambda pair: (pair[0], first.loss(pair[1].feedback.values[first.name])))
    files = {number: each.model.name for number, each in written.items()}
    rows = [
        [f"{each.number}{'' if rank else ' *'}", *(_cell(each, name) for name in names), files.get(each.number, "")]
        for rank, each in shown
    ]
    title = f"{found.card.name} in {found.card.space}: {', '.join(map(str, found.card.objectives))}"
    if rows:
        headers = ["trial", *names, "file"]
        print_columns(headers, rows, title=f"{title} (* is on the Pareto front)", to_stderr=to_stderr)
        print_pairs("choices", [(str(each.number), _choices(each)) for _, each in shown], to_stderr=to_stderr)
    print_pairs("total" if rows else title, _pairs(found), to_stderr=to_stderr)


def _cell(each: Individual, name: str) -> str:
    value = each.feedback.values[name]
    if not name.startswith(LATENCY):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    latency = each.feedback.latencies.get(name.removeprefix(LATENCY))
    text = latency_text(value)
    if latency is None or latency.low_us is None:
        return text
    kind = "" if latency.cost == "measured" else f", {latency.cost}"
    return f"{text} ({latency_text(latency.low_us)} to {latency_text(latency.high_us)}{kind})"


def _choices(each: Individual) -> str:
    """Choices without their candidates: "stage1: ways 2, growth 8; stage2: ways 1"."""
    asked = [(name.rpartition("{")[0] or name).rpartition("]/") for name in each.choices]
    is_one_place = len({place for place, _, _ in asked}) == 1
    at: dict[str, list[str]] = {}
    for (mutator, end, what), value in zip(asked, each.choices.values(), strict=True):
        place, _, word = (what if is_one_place else f"{mutator}{end}{what}").rpartition("/")
        at.setdefault(place, []).append(f"{word} {value}")
    said = (f"{place}: {', '.join(words)}" if place else ", ".join(words) for place, words in at.items())
    return "; ".join(said) or "none"


def _pairs(found: StudyHistory) -> list[tuple[str, str]]:
    constraints, stopped, running = found.card.constraints, found.count("stopped"), found.count("running")
    feasible = sum(each.point is not None and each.point.violation <= 0 for each in found.individuals)
    different = count_text(found.count("complete") - found.reused, "distinct variant")
    said = {
        "trials": f"{len(found.finished)}, of which {found.count('failed')} failed",
        "ended early": f"{stopped}, as not promising" if stopped else "",
        "evaluated": f"{different}; {found.reused} repeats",
        "constraints": f"{', '.join(map(str, constraints))}: met by {feasible}" if constraints else "",
        "running": f"{running}, in another process or to be repeated" if running else "",
        "time": f"{found.seconds:.0f} s in all trials",
        "study": str(found.storage),
    }
    return [(what, text) for what, text in said.items() if text]


def left_remarks(left: Sequence[Path]) -> Sequence[str]:
    """Name models of earlier calls, which could be mistaken for the best."""
    if not left:
        return []
    named = ", ".join(path.name for path in left[:_MOST_LEFT])
    more = f" and {len(left) - _MOST_LEFT} more" if len(left) > _MOST_LEFT else ""
    return [f"Written to {left[0].parent} by earlier calls, no longer among the best: {named}{more}"]


def remarks_of(found: StudyHistory) -> Sequence[str]:
    """Why trials failed, most frequent reasons first."""
    reasons = Counter(each.feedback.reason for each in found.individuals if each.state == "failed")
    lines = [
        f"{count} trials failed: {reason}" if count > 1 else f"Trial failed: {reason}"
        for reason, count in reasons.most_common(_MOST_REASONS)
    ]
    more = len(reasons) - len(lines)
    return [*lines, *([f"{count_text(more, 'more reason')}: see --json"] if more > 0 else [])]
