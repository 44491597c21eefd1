"""The trials of a study: each variant is made here, and workers of a pool cost and score it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosched.jobs.batching.model_clusters import composed
from iosched.jobs.exploring.explore_result import Feedback, Latency
from iosched.jobs.exploring.explore_settings import ExploreSettings, ParsedSettings
from iosched.jobs.exploring.objectives import LATENCY, Constraint
from iosched.jobs.exploring.score import SCORE, Score, Scored, Scores
from iosched.jobs.observer import Interrupt, Observer
from iosched.jobs.pool.messages import InterruptedTaskError, Progress, Step
from iosched.jobs.pool.task import Pending, Target, Task, WorkerPool
from iosched.jobs.ranking.model_cost import ModelCost
from iosched.jobs.ranking.rank_task import cost_task
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError, UsageError
from iosched.models.model import Model
from iosched.models.mutation.edit import AnswerError
from iosched.models.mutation.variant import Variant, variant_of
from iosched.models.spaces.space import Space
from iosched.scheduler.batching.costs import EqualGains

if TYPE_CHECKING:  # Optuna is optional
    from iosched.jobs.exploring.study import StudyStrategy

_WAIT_S = 0.2
"""Time to wait for the trials of other processes."""

_MOST_REASON = 1000


class InterruptedTrialError(Exception):
    """The user interrupted while a trial waited for this machine; the trial has no result."""


@dataclass(eq=False)
class _Trial:
    """A trial under way; `same` are later trials of the same variant, which wait for its result."""

    number: int
    feedback: Feedback
    variant: Variant
    costs: dict[str, Pending[ModelCost]] = field(default_factory=dict)
    is_costed: bool = False
    is_scored: bool = False
    same: list[_Trial] = field(default_factory=list)

    @property
    def member(self) -> str:
        return f"trial-{self.number:04}"

    def took(self, seconds: float) -> None:
        self.feedback = replace(self.feedback, seconds=self.feedback.seconds + seconds)


@dataclass(eq=False)
class _Scoring:
    """A run of the score command, for one trial or several as one model.

    Attributes:
        group: the failed run for several trials that this one belongs to.
        pruned_after: the last step of a command that was ended.
        reason: why the command failed for several trials.
        n_scored: the number of these that have since been scored alone.
    """

    trials: Sequence[_Trial]
    group: _Scoring | None = None
    pending: Pending[Scores] | None = None
    pruned_after: int | None = None
    reason: str = ""
    n_scored: int = 0


@dataclass(eq=False)
class Trials:
    """Runs the trials of a study.

    Attributes:
        bases: the models that the space varies.
        targets: the devices that variants are costed for, or the one that they are scored on, as the user names them.
        refusals: why scoring several models as one failed while each alone succeeded; variants are then scored one by
            one.
    """

    bases: Sequence[Model]
    space: Space
    asked: ParsedSettings
    settings: ExploreSettings
    pool: WorkerPool
    targets: Mapping[str, Target]
    strategy: StudyStrategy
    observer: Observer
    interrupt: Interrupt
    refusals: list[str] = field(default_factory=list)
    _trials: dict[int, _Trial] = field(default_factory=dict)
    _scorings: list[_Scoring] = field(default_factory=list)

    def run(self) -> bool:
        """Runs all trials; returns whether the user interrupted."""
        try:
            while True:
                if self.interrupt.came:
                    self.interrupt.ask()
                    return True
                self._begin()
                if not self._trials and self.strategy.has_ended:
                    return False
                if not self._trials:
                    time.sleep(_WAIT_S)
                    continue
                self._score_costed()
                self.pool.wait(self._pending)
                self._advance()
        finally:
            for pending in self._pending:
                self.pool.stop(pending, "now")

    @property
    def _pending(self) -> list[Pending[Any]]:
        costs = [each for trial in self._trials.values() if not trial.is_costed for each in trial.costs.values()]
        return [*costs, *(scoring.pending for scoring in self._scorings if scoring.pending is not None)]

    def _begin(self) -> None:
        """Begins trials until each worker has a full batch for the score command."""
        n_up = self.pool.n_up([target.workers for target in self.targets.values()])
        while len(self._trials) < n_up * self.settings.score_batch:
            number = self.strategy.ask_graph()
            if number is None:
                return
            self._make(number)

    def _make(self, number: int) -> None:
        self._say(number, "creating the variant")
        began_s = time.monotonic()
        answer = partial(self.strategy.ask_choice, number)
        try:
            variant = variant_of(self.bases, self.space.mutators, answer, self.space.max_mutations)
            made = Feedback(record=variant.record.to_json(), key=variant.model.digest)
        except AnswerError:
            raise
        except Exception as error:  # noqa: BLE001 - mutators are the user's own code
            failed = Feedback(reason=_reason_of(error), seconds=time.monotonic() - began_s)
            self.strategy.receive_feedback(number, failed)
            return
        trial = _Trial(number, made, variant)
        trial.took(time.monotonic() - began_s)
        if same := [each for each in self._trials.values() if each.feedback.key == made.key]:
            same[0].same.append(trial)
        elif known := [each for each in self.strategy.history() if each.feedback.key == made.key and each.point]:
            self.strategy.receive_feedback(number, _again(trial.feedback, known[0].number, known[0].feedback))
        else:
            self._cost(trial)

    def _cost(self, trial: _Trial) -> None:
        about = (self.settings.measure, self.settings.optimize, trial.variant.model, self.settings.trials)
        try:
            for device in self.asked.devices:
                self._say(trial.number, f"latency on {device}")
                trial.costs[device] = self.pool.submit(cost_task(self.pool, self.targets[device], *about))
        except UsageError as error:  # too large to be sent
            self.strategy.receive_feedback(trial.number, replace(trial.feedback, reason=str(error)))
            return
        self._trials[trial.number] = trial
        if not trial.costs:
            self._end_costs(trial)

    def _say(self, number: int, what: str) -> None:
        self.observer.progress(number, self.settings.trials, f"trial {number}: {what}")

    def _advance(self) -> None:
        for trial in list(self._trials.values()):
            if not trial.is_costed and all(each.is_done for each in trial.costs.values()):
                self._end_costs(trial)
        for scoring in list(self._scorings):
            if scoring.pending is not None and scoring.pending.is_done:
                self._scorings.remove(scoring)
                self._end_score(scoring, scoring.pending)

    def _end_costs(self, trial: _Trial) -> None:
        trial.took(_covered_s(trial.costs.values()))
        try:
            trial.feedback = _costed(trial.feedback, trial.variant.model, trial.costs, self.asked)
        except InterruptedTrialError:
            del self._trials[trial.number]
            return
        trial.is_costed = True
        if trial.feedback.reason is not None or self.asked.score is None:
            self._end(trial)

    def _score_costed(self) -> None:
        """Scores variants once a batch for the score command is full, or no other trial is under way."""
        most = self.settings.score_batch
        waiting = [trial for trial in self._trials.values() if trial.is_costed and not trial.is_scored]
        if not waiting or len(waiting) < min(most, len(self._trials)):
            return
        alike: dict[object, list[_Trial]] = defaultdict(list)
        for trial in waiting:
            trial.is_scored = True
            alike[trial.variant.model.graph.inputs].append(trial)
        for trials in alike.values():
            size = 1 if self.refusals else most
            for first in range(0, len(trials), size):
                self._score(_Scoring(trials[first : first + size]))

    def _score(self, scoring: _Scoring) -> None:
        self._say(scoring.trials[0].number, "score")
        try:
            scoring.pending = self.pool.submit(self._score_task(scoring))
        except IoschedError as error:  # too large to be sent, or cannot be composed
            self._refuse(scoring, str(error))
            return
        self._scorings.append(scoring)

    def _score_task(self, scoring: _Scoring) -> Task[Scores]:
        command = self.asked.score
        assert command is not None
        first, *others = scoring.trials
        name, model = first.member, first.variant.model
        choices: dict[str, Any] = dict(first.variant.choices)
        members: tuple[str, ...] = ()
        if others:
            members = tuple(trial.member for trial in scoring.trials)
            name, model = "trials", _one_model({trial.member: trial.variant.model for trial in scoring.trials})
            choices = {trial.member: dict(trial.variant.choices) for trial in scoring.trials}
        watched = command.keys[0] if self.settings.prunes and not others else None
        work = Score(name, command, str(Path.cwd()), choices, members, watched)
        workers = next(iter(self.targets.values())).workers
        return Task(SCORE, work, model, workers, on_said=partial(self._hear, scoring))

    def _hear(self, scoring: _Scoring, said: Progress | Step) -> None:
        if not isinstance(said, Step) or scoring.pending is None:
            return
        if scoring.pruned_after is None:
            if not self.strategy.stops_early(scoring.trials[0].number, said.step, said.value):
                return
            self.pool.stop(scoring.pending, "pruned")
        scoring.pruned_after = said.step

    def _end_score(self, scoring: _Scoring, pending: Pending[Scores]) -> None:
        for trial in scoring.trials:
            trial.took(_covered_s([pending]) / len(scoring.trials))
        try:
            found = pending.result()
        except (InterruptedTaskError, InterruptedTrialError):
            for trial in scoring.trials:
                if scoring.pruned_after is None:
                    del self._trials[trial.number]
                    continue
                reason = f"pruned after step {scoring.pruned_after}: worse than the median of other trials"
                self._end(trial, reason=reason, is_stopped=True)
            return
        except ExecutionError as error:  # for example, a variant that crashes every worker
            found = Scores(reason=str(error))
        if found.reason is not None:
            self._refuse(scoring, found.reason)
            return
        for trial, scored in zip(scoring.trials, found.of, strict=True):
            self._end_scored(trial, scored, scoring.group)

    def _refuse(self, scoring: _Scoring, reason: str) -> None:
        """Scores the variants of a failed group one by one."""
        if len(scoring.trials) == 1:
            self._end_scored(scoring.trials[0], Scored(reason=reason), scoring.group)
            return
        scoring.reason = reason
        for trial in scoring.trials:
            self._score(_Scoring([trial], scoring))

    def _end_scored(self, trial: _Trial, scored: Scored, group: _Scoring | None) -> None:
        reason = scored.reason and scored.reason[:_MOST_REASON]
        self._end(trial, values={**scored.values, **trial.feedback.values}, reason=reason)
        if group is not None and scored.reason is None:
            group.n_scored += 1
            if group.n_scored == len(group.trials):
                self.refusals.append(group.reason)

    def _end(self, trial: _Trial, **changes: Any) -> None:
        del self._trials[trial.number]
        feedback = replace(trial.feedback, **changes)
        self.strategy.receive_feedback(trial.number, feedback)
        for each in trial.same:
            self.strategy.receive_feedback(each.number, _again(each.feedback, trial.number, feedback))


def _costed(
    feedback: Feedback, model: Model, costs: Mapping[str, Pending[ModelCost]], asked: ParsedSettings
) -> Feedback:
    """Adds the values that need no score; after a failure, those found before it."""
    values = {"flops": float(model.flops), "params": float(model.n_parameters)}
    latencies: dict[str, Latency] = {}
    reason = schedule = None
    try:
        for device, pending in costs.items():
            cost = pending.result()
            values[f"{LATENCY}{device}"], latencies[device] = cost.latency_us, _latency(cost)
            if device == asked.devices[0] and cost.result is not None:
                schedule = cost.result.document.to_json()
    except (DeviceError, DeviceLostError):
        raise
    except IoschedError as error:
        reason = _reason_of(error)
    violated = _violated(asked.constraints, values) if reason is None and asked.score is not None else None
    found = replace(feedback, values=values, latencies=latencies, schedule=schedule)
    return replace(found, reason=reason or violated, is_stopped=violated is not None)


def _again(own: Feedback, number: int, first: Feedback) -> Feedback:
    reused = None if first.reason is not None else number if first.reused is None else first.reused
    return replace(first, record=own.record, schedule=None, seconds=own.seconds, reused=reused)


def _reason_of(error: Exception) -> str:
    text = str(error) if isinstance(error, IoschedError) else f"{type(error).__name__}: {error}"
    return text[:_MOST_REASON]


def _latency(cost: ModelCost) -> Latency:
    seconds = cost.search_seconds, cost.comparison_seconds
    return Latency(cost.cost, cost.low_us, cost.high_us, cost.sequential_us, cost.hit_rate, *seconds)


def _violated(constraints: Sequence[Constraint], values: Mapping[str, float]) -> str | None:
    """The first constraint that a variant violates before it is scored."""
    broken = (each for each in constraints if each.name in values and each.violation(values[each.name]) > 0)
    return next((f"not scored: {each.name} is {values[each.name]:g}, not {each}" for each in broken), None)


def _covered_s(tasks: Iterable[Pending[Any]]) -> float:
    """The seconds in which at least one of the tasks was under way."""
    covered_s = end_s = 0.0
    for began_s, ended_s in sorted((task.began_s, task.ended_s) for task in tasks):
        covered_s += max(0.0, ended_s - max(began_s, end_s))
        end_s = max(end_s, ended_s)
    return covered_s


def _one_model(models: Mapping[str, Model]) -> Model:
    """The models as one with shared inputs, batched wherever possible, since costs are unknown."""
    inputs = dict.fromkeys(spec.name for model in models.values() for spec in model.graph.inputs)
    cluster = composed(models, tuple(inputs), "trials")
    try:
        return cluster.batched(cluster.plan("greedy", EqualGains()))
    except ValueError:
        return cluster.model
