"""The result of `explore`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iosched.jobs.exploring.card import Card
from iosched.jobs.exploring.front import best_first, ranks
from iosched.jobs.exploring.strategy import Individual
from iosched.models.model import Model
from iosched.scheduler.document import ScheduleDocument


@dataclass(frozen=True)
class Chosen:
    """A variant that is written.

    Attributes:
        number: that of its trial.
        model: what is written.
        document: the schedule file that it ships with.
    """

    number: int
    model: Model
    document: ScheduleDocument


@dataclass(frozen=True)
class Found:
    """What is known of a study.

    Attributes:
        storage: its file.
        card: what it is about.
        individuals: its trials by their numbers, also those that run.
    """

    storage: Path
    card: Card
    individuals: tuple[Individual, ...]

    @property
    def finished(self) -> tuple[Individual, ...]:
        """The trials that have ended."""
        return tuple(each for each in self.individuals if each.state != "running")

    def count(self, state: str) -> int:
        """How many trials are in a state."""
        return sum(each.state == state for each in self.individuals)

    @property
    def reused(self) -> int:
        """How many trials met a variant that an earlier one had evaluated."""
        return sum(each.feedback.reused is not None for each in self.finished)

    @property
    def seconds(self) -> float:
        """How long the trials took that have ended."""
        return sum(each.feedback.seconds for each in self.finished)

    def ranked(self) -> Sequence[tuple[int, Individual]]:
        """The different variants that meet all constraints, each with its rank: the front, of rank 0, comes first.

        Of variants that are equal, the first trial stands for all.
        """
        feasible = [
            each
            for each in self.individuals
            if each.point is not None and each.point.violation <= 0 and each.feedback.reused is None
        ]
        points = [each.point for each in feasible if each.point is not None]
        rank = ranks(points)
        return [(rank[place], feasible[place]) for place in best_first(points)]


@dataclass(frozen=True)
class ExploreResult:
    """A study, and the variants that are best.

    Attributes:
        found: the study as it is now.
        chosen: the models of the best variants, the best first.
        seconds: how long this call took.
        notes: sentences that a user should read.
        was_interrupted: whether the user ended it before all trials were done.
    """

    found: Found
    chosen: tuple[Chosen, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    was_interrupted: bool = False
