"""What a job asks of a strategy that explores variants, in Retiarii's words.

Retiarii (OSDI'20, figure 11) has an engine that generates graphs and calls a strategy: which graph is next
(`on_ask_target_graph`), which of the candidates of a `choose` (`on_ask_choice`), what came of it
(`on_receive_feedbacks`), whether to go on with it (`terminate_graph`), and what was chosen before
(`query_mutation_history`). Every graph here is mutated from the base model, and none is trained by the engine: a score
command of the user's may do that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from iosched.jobs.exploring.front import Point
from iosched.models.graph import Scalar
from iosched.models.mutation.edit import Question

State = Literal["complete", "stopped", "failed", "running"]


@dataclass(frozen=True)
class Graph:
    """A variant that is to be made and evaluated; `number` is that of its trial."""

    number: int


@dataclass(frozen=True)
class Latency:
    """How a latency of a variant on one device was found, in microseconds; see `jobs.ranking.cost.ModelCost`."""

    cost: str
    low_us: float | None = None
    high_us: float | None = None
    sequential_us: float | None = None
    hit_rate: float | None = None
    search_seconds: float = 0.0
    comparison_seconds: float = 0.0


@dataclass(frozen=True)
class Feedback:
    """What came of a graph.

    Attributes:
        values: what was found, by the names that objectives and constraints have for it.
        latencies: how the latencies among them were found, by device.
        record: how the variant is made, as JSON; None where it could not be made.
        key: two variants of one key compute the same with the same weights; None where it could not be made.
        schedule: the schedule file that the first of the latencies is of, as JSON; None where none was decided.
        seconds: how long it took.
        reason: why there is no result; None where there is one.
        is_stopped: whether, if there is none, that is since going on was not worth it.
        reused: the number of the trial that found all this for the same variant before; None where it was found now.
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
    """A trial of the study: what was chosen, and what came of it.

    Attributes:
        number: counts the trials of a study from 0.
        choices: what was chosen, by the questions' names, in the order in which they were asked.
        point: how it compares with others; None where it has not all of the values that this takes.
    """

    number: int
    state: State
    choices: Mapping[str, Scalar]
    feedback: Feedback
    point: Point | None = None


class Strategy(Protocol):
    """Chooses what is tried next."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be tried."""

    def ask_graph(self) -> Graph | None:
        """The next graph to make; None where there is none, or none before others have been evaluated."""

    def ask_choice(self, graph: Graph, question: Question) -> int:
        """The place of the chosen one among the question's candidates."""

    def stops_early(self, graph: Graph, step: int, value: float) -> bool:
        """Whether to go on with a graph is not worth it, whose only objective has this value after so many steps."""

    def receive_feedback(self, graph: Graph, feedback: Feedback) -> None:
        """Takes what came of a graph."""

    def history(self) -> Sequence[Individual]:
        """All trials of the study, also those of other processes and earlier calls, by their numbers."""
