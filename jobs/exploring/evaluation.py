"""What variants are worth: they are made, costed, and scored by the user's command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from iosched.jobs.exploring.objectives import LATENCY, Constraint
from iosched.jobs.exploring.score import ScoreError
from iosched.jobs.exploring.settings import Asked, ExploreSettings
from iosched.jobs.exploring.strategy import Feedback, Graph, Latency, Strategy
from iosched.jobs.progress import Observer
from iosched.jobs.ranking.model_cost import ModelCost
from iosched.models.errors import DeviceError, DeviceLostError, IoschedError
from iosched.models.model import Model
from iosched.models.mutation.edit import AnswerError
from iosched.models.mutation.variant import Variant, variant_of
from iosched.models.spaces.space import Space

Outcome = Mapping[str, float] | ScoreError
"""The values that the score command printed, or why it printed none."""

_MOST_REASON = 1000


class InterruptedTrialError(Exception):
    """The user interrupted while a trial waited for this machine; the trial has no result."""


class PrunedError(ScoreError):
    """The score command was ended, since its values were worse than those of other trials."""


@dataclass(frozen=True)
class Made:
    """A variant that was made, and what is known of it before it is costed."""

    graph: Graph
    feedback: Feedback
    variant: Variant


@dataclass(frozen=True)
class Costed:
    """A variant that was made and costed, or could not be.

    Attributes:
        variant: is still to be scored; None where nothing is to be done any more.
        same_as: the trial of the same round that is of the same variant.
    """

    graph: Graph
    feedback: Feedback
    variant: Variant | None = None
    same_as: int | None = None


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates variants of base models."""

    bases: Sequence[Model]
    space: Space
    asked: Asked
    settings: ExploreSettings
    strategy: Strategy
    observer: Observer

    def made(self, graph: Graph, before: Sequence[Made | Costed]) -> Made | Costed:
        """Makes a graph; what was evaluated already, or failed, or is among those `before`, need not be costed."""
        self.say(graph, "made")
        try:
            answer = partial(self.strategy.ask_choice, graph)
            variant = variant_of(self.bases, self.space.mutators, answer, self.space.max_mutations)
            made = Feedback(record=variant.record.to_json(), key=variant.model.digest)
        except AnswerError:
            raise
        except Exception as error:  # noqa: BLE001 - mutators are the user's own code
            return Costed(graph, Feedback(reason=_reason(error)))
        if (same := next((each.graph.number for each in before if each.feedback.key == made.key), None)) is not None:
            return Costed(graph, made, same_as=same)
        known = next((each for each in self.strategy.history() if each.feedback.key == made.key and each.point), None)
        if known is not None:
            return Costed(graph, again(Costed(graph, made, same_as=known.number), known.feedback))
        return Made(graph, made, variant)

    def costed(self, made: Made, costs: Iterable[tuple[str, ModelCost]]) -> Costed:
        """The values that need no score; where something fails, those that were found before.

        Args:
            costs: what the variant costs on each device; the iterator raises an `IoschedError` where that fails.

        Raises:
            DeviceError: no variant can be costed.
            DeviceLostError: a device stopped working.
        """
        graph, variant = made.graph, made.variant
        values = {"flops": float(variant.model.flops), "params": float(variant.model.n_parameters)}
        latencies: dict[str, Latency] = {}
        reason = schedule = None
        try:
            for device, cost in costs:
                values[f"{LATENCY}{device}"], latencies[device] = cost.latency_us, _latency(cost)
                if device == self.asked.devices[0] and cost.result is not None:
                    schedule = cost.result.document.to_json()
        except (DeviceError, DeviceLostError):
            raise
        except IoschedError as error:
            reason = _reason(error)
        found = replace(made.feedback, values=values, latencies=latencies, schedule=schedule, reason=reason)
        if reason is not None or self.asked.score is None:
            return Costed(graph, found)
        if violated := _violated(self.asked.constraints, values):
            return Costed(graph, replace(found, reason=violated, is_stopped=True))
        return Costed(graph, found, variant)

    def say(self, graph: Graph, what: str) -> None:
        """Shows what comes next for a trial."""
        self.observer.progress(graph.number, self.settings.trials, f"trial {graph.number}: {what}")


def with_score(feedback: Feedback, outcome: Outcome, seconds: float) -> Feedback:
    """What came of a variant, with what a score command said of it within so many seconds."""
    took = replace(feedback, seconds=feedback.seconds + seconds)
    if isinstance(outcome, IoschedError):
        return replace(took, reason=_reason(outcome), is_stopped=isinstance(outcome, PrunedError))
    return replace(took, values={**outcome, **took.values})


def again(each: Costed, first: Feedback) -> Feedback:
    """What came of a variant that another trial was of: `first`."""
    reused = None if first.reason is not None else each.same_as if first.reused is None else first.reused
    record, seconds = each.feedback.record, each.feedback.seconds
    return replace(first, record=record, schedule=None, seconds=seconds, reused=reused)


def _latency(cost: ModelCost) -> Latency:
    seconds = cost.search_seconds, cost.comparison_seconds
    return Latency(cost.cost, cost.low_us, cost.high_us, cost.sequential_us, cost.hit_rate, *seconds)


def _violated(constraints: Sequence[Constraint], values: Mapping[str, float]) -> str | None:
    """Which constraint a variant violates, by what is known before it is scored."""
    broken = (each for each in constraints if each.name in values and each.violation(values[each.name]) > 0)
    return next((f"{each.name} is {values[each.name]:g}, not {each}: not scored" for each in broken), None)


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, IoschedError) else f"{type(error).__name__}: {error}"
    return text[:_MOST_REASON]
