"""The trials of a study, and the result of `explore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from iosched.jobs.exploring.objectives import Card
from iosched.jobs.exploring.pareto_front import Point, best_first, ranks
from iosched.models.graph import Scalar
from iosched.models.model import Model
from iosched.scheduler.document import ScheduleDocument

State = Literal["complete", "stopped", "failed", "running"]


@dataclass(frozen=True)
class Latency:
    """A variant's latency on one device, in microseconds; see `jobs.ranking.model_cost.ModelCost`."""

    cost: str
    low_us: float | None = None
    high_us: float | None = None
    sequential_us: float | None = None
    hit_rate: float | None = None
    search_seconds: float = 0.0
    comparison_seconds: float = 0.0


@dataclass(frozen=True)
class Feedback:
    """The result of a variant.

    Attributes:
        values: values by the names in objectives and constraints.
        latencies: how the latencies among them were found, by device.
        record: how the variant is made, as JSON; None if it could not be made.
        key: variants with equal keys compute the same with the same weights; None if it could not be made.
        schedule: the schedule file of the first latency, as JSON; None if none was decided.
        reason: why there is no result; None if there is one.
        is_stopped: whether the trial was stopped early.
        reused: the number of the earlier trial of the same variant whose result this is; None if the result is new.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    latencies: Mapping[str, Latency] = field(default_factory=dict)
    record: str | None = None
    key: str | None = None
    schedule: str | None = None
    seconds: float = 0.0
    reason: str | None = None
    is_stopped: bool = False
    reused: int | None = None


@dataclass(frozen=True)
class Individual:
    """A trial of the study.

    Attributes:
        number: counts the trials of a study from 0.
        choices: choices by question, in the order of the questions.
        point: the values by which it compares with others; None if one of them is missing.
    """

    number: int
    state: State
    choices: Mapping[str, Scalar]
    feedback: Feedback
    point: Point | None = None


@dataclass(frozen=True)
class Chosen:
    """A variant that is written.

    Attributes:
        document: the schedule file that it ships with.
    """

    number: int
    model: Model
    document: ScheduleDocument


@dataclass(frozen=True)
class StudyHistory:
    """A study.

    Attributes:
        individuals: its trials by number, including running ones.
    """

    storage: Path
    card: Card
    individuals: tuple[Individual, ...]

    @property
    def finished(self) -> tuple[Individual, ...]:
        """The trials that have ended."""
        return tuple(each for each in self.individuals if each.state != "running")

    def count(self, state: str) -> int:
        """The number of trials in a state."""
        return sum(each.state == state for each in self.individuals)

    @property
    def reused(self) -> int:
        """The number of trials whose variant was already evaluated."""
        return sum(each.feedback.reused is not None for each in self.finished)

    @property
    def seconds(self) -> float:
        """The total seconds of ended trials."""
        return sum(each.feedback.seconds for each in self.finished)

    def ranked(self) -> Sequence[tuple[int, Individual]]:
        """The different variants that meet all constraints, each with its rank: the front, of rank 0, comes first.

        Of equal variants, the first trial counts.
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
        chosen: the best variants, best first.
        seconds: the duration of this call.
        was_interrupted: whether the user ended it early.
    """

    found: StudyHistory
    chosen: tuple[Chosen, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    was_interrupted: bool = False
