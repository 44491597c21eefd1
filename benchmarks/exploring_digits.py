"""All trials of the example in docs/exploring.md as JSON, and its front as a table.

    python benchmarks/exploring_digits.py STUDY [-o F.json]

Measures nothing; the page has the command that makes the study.

Options:
    study: file of `iosched explore`
    --output: all trials as JSON
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from command_line import read_options
from result_tables import print_table
from results_files import write_results

from iosched.jobs.explore import study_in
from iosched.jobs.exploring.explore_result import StudyHistory

Trial = Mapping[str, Any]
"""A trial as returned by `trials_of`."""


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, {"study": Path}, output=Path)
    found = study_in(options.study)
    trials = trials_of(found)
    write_results(options, {"space": found.card.space, "trials": trials})
    print_table(*front_table(trials))


def trials_of(found: StudyHistory) -> list[Trial]:
    """Choices and results of each trial; `rank` is 0 on the front, None for trials not compared."""
    ranks = {each.number: rank for rank, each in found.ranked()}
    return [
        {
            "trial": each.number,
            "state": each.state,
            "rank": ranks.get(each.number),
            "choices": dict(each.choices),
            "values": dict(each.feedback.values),
            "latencies": {device: asdict(latency) for device, latency in each.feedback.latencies.items()},
            "seconds": each.feedback.seconds,
            "reused": each.feedback.reused,
            "reason": each.feedback.reason,
        }
        for each in found.individuals
    ]


def front_table(trials: Sequence[Trial]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The trials of the front, the fastest first, as reports/exploring.md has them."""
    front = sorted((each for each in trials if each["rank"] == 0), key=lambda each: each["values"]["latency:cpu"])
    return ("trial", "latency", "accuracy", "operations", "parameters"), [row(each) for each in front]


def row(trial: Trial) -> tuple[str, ...]:
    values, latency = trial["values"], trial["latencies"]["cpu"]
    return (
        str(trial["trial"]),
        f"{values['latency:cpu']:.0f} us ({latency['low_us']:.0f} to {latency['high_us']:.0f})",
        f"{values['accuracy']:.3f} ({values['accuracy_low']:.3f} to {values['accuracy_high']:.3f})",
        f"{values['flops'] / 1e6:.1f} million",
        f"{values['params']:,.0f}",
    )


if __name__ == "__main__":
    main()
