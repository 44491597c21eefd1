"""The trials of a study: each variant is made here, and workers of a pool cost and score it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iosched.jobs.batching.plan import composed
from iosched.jobs.exploring.evaluation import (
    Costed,
    Evaluator,
    InterruptedTrialError,
    Made,
    PrunedError,
    again,
    with_score,
)
from iosched.jobs.exploring.pruning import pruned_after
from iosched.jobs.exploring.score import ScoreError
from iosched.jobs.exploring.score_task import SCORE, Score, Scored, Scores
from iosched.jobs.exploring.strategy import Feedback, Graph, Strategy
from iosched.jobs.interrupt import Interrupt
from iosched.jobs.pool.messages import InterruptedTaskError, Progress, Step
from iosched.jobs.pool.task import Pending, Pool, Target, Task
from iosched.jobs.ranking.model_cost import ModelCost
from iosched.jobs.ranking.task import cost_task
from iosched.models.errors import ExecutionError, IoschedError, UsageError
from iosched.models.model import Model
from iosched.scheduler.batching.costs import EqualGains

_WAIT_S = 0.2
"""How long to wait for the trials of other processes."""


@dataclass(eq=False)
class _Trial:
    """A trial under way.

    Attributes:
        costed: the variant with its costs; None until they are known.
        is_scored: whether the score command was asked for it.
        seconds: the time spent on it so far.
    """

    made: Made
    costs: dict[str, Pending[ModelCost]]
    seconds: float
    costed: Costed | None = None
    is_scored: bool = False

    @property
    def number(self) -> int:
        return self.made.graph.number

    @property
    def member(self) -> str:
        return f"trial-{self.number:04}"


@dataclass(eq=False)
class _Refusal:
    """A group of variants that the score command failed with, although it may score each of them."""

    reason: str
    n_left: int


@dataclass(eq=False)
class _Scoring:
    """One run of the score command, for one trial or several as one model.

    Attributes:
        refusal: of the group that the trial was in before.
        pruned_after: the step after which the command was ended; None where it was not.
    """

    trials: Sequence[_Trial]
    refusal: _Refusal | None = None
    pending: Pending[Scores] | None = None
    pruned_after: int | None = None


@dataclass(eq=False)
class Trials:
    """Runs the trials of a study.

    Attributes:
        targets: the devices that variants are costed for, or the one that they are scored on, as the user names them.
        refusals: why the score command failed with several models as one, where it failed with none of them alone. From
            then on it is run for each variant.
    """

    pool: Pool
    targets: Mapping[str, Target]
    strategy: Strategy
    evaluator: Evaluator
    interrupt: Interrupt
    refusals: list[str] = field(default_factory=list)
    _trials: dict[int, _Trial] = field(default_factory=dict)
    _same: list[Costed] = field(default_factory=list)
    _scorings: list[_Scoring] = field(default_factory=list)

    def run(self) -> bool:
        """Tries variants until none is left to try; returns whether the user interrupted.

        Raises:
            DeviceError: no variant can be costed.
            DeviceLostError: all workers of a device were lost.
            KeyboardInterrupt: the user interrupts, and does not want the best variants known.
        """
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
        costs = [each for trial in self._trials.values() if trial.costed is None for each in trial.costs.values()]
        return [*costs, *(scoring.pending for scoring in self._scorings if scoring.pending is not None)]

    def _begin(self) -> None:
        """Begins trials until each worker has as many as the score command takes at a time."""
        n_up = self.pool.n_up([target.workers for target in self.targets.values()])
        while len(self._trials) < n_up * self.evaluator.settings.score_batch:
            graph = self.strategy.ask_graph()
            if graph is None:
                return
            self._make(graph)

    def _make(self, graph: Graph) -> None:
        began_s = time.monotonic()
        found = self.evaluator.made(graph, [trial.made for trial in self._trials.values()])
        seconds = time.monotonic() - began_s
        if isinstance(found, Costed):
            found = replace(found, feedback=replace(found.feedback, seconds=seconds))
            if found.same_as is None:
                self.strategy.receive_feedback(graph, found.feedback)
            else:
                self._same.append(found)
            return
        settings = self.evaluator.settings
        about = (settings.measure, settings.optimize, found.variant.model, settings.trials)
        costs: dict[str, Pending[ModelCost]] = {}
        try:
            for device in self.evaluator.asked.devices:
                self.evaluator.say(graph, f"latency on {device}")
                costs[device] = self.pool.submit(cost_task(self.pool, self.targets[device], *about))
        except UsageError as error:  # too large to be sent
            self.strategy.receive_feedback(graph, replace(found.feedback, reason=str(error), seconds=seconds))
            return
        self._trials[graph.number] = _Trial(found, costs, seconds)
        if not costs:
            self._end_costs(self._trials[graph.number])

    def _advance(self) -> None:
        for trial in list(self._trials.values()):
            if trial.costed is None and all(each.is_done for each in trial.costs.values()):
                self._end_costs(trial)
        for scoring in list(self._scorings):
            if scoring.pending is not None and scoring.pending.is_done:
                self._scorings.remove(scoring)
                self._end_score(scoring, scoring.pending)

    def _end_costs(self, trial: _Trial) -> None:
        trial.seconds += _covered_s(trial.costs.values())
        try:
            trial.costed = self.evaluator.costed(trial.made, _costs(trial))
        except InterruptedTrialError:
            del self._trials[trial.number]
            return
        if trial.costed.variant is None:
            self._end(trial, replace(trial.costed.feedback, seconds=trial.seconds))

    def _score_costed(self) -> None:
        """Scores costed variants once there are as many as the score command takes, or no other trial is under way."""
        most = self.evaluator.settings.score_batch
        waiting = [trial for trial in self._trials.values() if trial.costed is not None and not trial.is_scored]
        if not waiting or len(waiting) < min(most, len(self._trials)):
            return
        alike: dict[object, list[_Trial]] = defaultdict(list)
        for trial in waiting:
            trial.is_scored = True
            alike[trial.made.variant.model.graph.inputs].append(trial)
        for trials in alike.values():
            size = 1 if self.refusals else most
            for first in range(0, len(trials), size):
                self._score(_Scoring(trials[first : first + size]))

    def _score(self, scoring: _Scoring) -> None:
        self.evaluator.say(scoring.trials[0].made.graph, "score")
        try:
            scoring.pending = self.pool.submit(self._score_task(scoring))
        except IoschedError as error:  # too large to be sent, or not to be put together
            self._refuse(scoring, str(error))
            return
        self._scorings.append(scoring)

    def _score_task(self, scoring: _Scoring) -> Task[Scores]:
        command, settings = self.evaluator.asked.score, self.evaluator.settings
        assert command is not None
        first, *others = scoring.trials
        name, model = first.member, first.made.variant.model
        choices: dict[str, Any] = dict(first.made.variant.choices)
        watched = command.keys[0] if settings.prunes and not others else None
        if others:
            models = {trial.member: trial.made.variant.model for trial in scoring.trials}
            name, model = "trials", _one_model(models)
            choices = {trial.member: dict(trial.made.variant.choices) for trial in scoring.trials}
        members = tuple(trial.member for trial in scoring.trials) if others else ()
        work = Score(name, command, str(Path.cwd()), choices, members, watched)
        workers = next(iter(self.targets.values())).workers
        return Task(SCORE, work, model, workers, on_said=self._hearing(scoring))

    def _hearing(self, scoring: _Scoring) -> Callable[[Progress | Step], None]:
        """Ends a score command that is worse than those of other trials."""

        def hear(said: Progress | Step) -> None:
            graph, pending = scoring.trials[0].made.graph, scoring.pending
            if not isinstance(said, Step) or pending is None or scoring.pruned_after is not None:
                return
            if self.strategy.stops_early(graph, said.step, said.value):
                scoring.pruned_after = said.step
                self.pool.stop(pending, "pruned")

        return hear

    def _end_score(self, scoring: _Scoring, pending: Pending[Scores]) -> None:
        for trial in scoring.trials:
            trial.seconds += _covered_s([pending]) / len(scoring.trials)
        try:
            found = pending.result()
        except (InterruptedTaskError, InterruptedTrialError):
            if scoring.pruned_after is None:
                for trial in scoring.trials:
                    del self._trials[trial.number]
                return
            found = Scores((Scored(reason=pruned_after(scoring.pruned_after), is_pruned=True),))
        except ExecutionError as error:  # a variant that no worker survives, say
            found = Scores(reason=str(error))
        if found.reason is not None:
            self._refuse(scoring, found.reason)
            return
        for trial, scored in zip(scoring.trials, found.of, strict=True):
            self._end_scored(trial, scored, scoring.refusal)

    def _refuse(self, scoring: _Scoring, reason: str) -> None:
        """Scores the variants of a group one by one that was not scored as one model."""
        if len(scoring.trials) == 1:
            self._end_scored(scoring.trials[0], Scored(reason=reason), scoring.refusal)
            return
        refusal = _Refusal(reason, len(scoring.trials))
        for trial in scoring.trials:
            self._score(_Scoring([trial], refusal))

    def _end_scored(self, trial: _Trial, scored: Scored, refusal: _Refusal | None) -> None:
        assert trial.costed is not None
        outcome: Mapping[str, float] | ScoreError = scored.values
        if scored.reason is not None:
            outcome = PrunedError(scored.reason) if scored.is_pruned else ScoreError(scored.reason)
        self._end(trial, with_score(trial.costed.feedback, outcome, trial.seconds))
        if refusal is not None and not isinstance(outcome, ScoreError):
            refusal.n_left -= 1
            if refusal.n_left == 0:
                self.refusals.append(refusal.reason)

    def _end(self, trial: _Trial, feedback: Feedback) -> None:
        """Ends a trial, and those of the same variant."""
        del self._trials[trial.number]
        self.strategy.receive_feedback(trial.made.graph, feedback)
        for each in [each for each in self._same if each.same_as == trial.number]:
            self._same.remove(each)
            self.strategy.receive_feedback(each.graph, again(each, feedback))


def _costs(trial: _Trial) -> Iterator[tuple[str, ModelCost]]:
    for device, pending in trial.costs.items():
        yield device, pending.result()


def _covered_s(tasks: Iterable[Pending[Any]]) -> float:
    """The seconds in which at least one of the tasks was under way."""
    covered_s = end_s = 0.0
    for began_s, ended_s in sorted((task.began_s, task.ended_s) for task in tasks):
        covered_s += max(0.0, ended_s - max(began_s, end_s))
        end_s = max(end_s, ended_s)
    return covered_s


def _one_model(models: Mapping[str, Model]) -> Model:
    """The models as one, fed once: what is alike is batched wherever possible, since its cost is not known.

    Raises:
        InvalidModelError: the models' opsets cannot be brought together.
        UsageError: their inputs differ.
    """
    inputs = dict.fromkeys(spec.name for model in models.values() for spec in model.graph.inputs)
    cluster = composed(models, tuple(inputs), "trials")
    try:
        return cluster.batched(cluster.plan("greedy", EqualGains()))
    except ValueError:
        return cluster.model
