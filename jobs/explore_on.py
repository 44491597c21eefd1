"""The job `explore` on a cluster: as many trials under way as there are workers, and the study in the driver alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from iosched.jobs.explore import WAIT_S, explore
from iosched.jobs.exploring.evaluation import Costed, Evaluator, Made, again, with_score
from iosched.jobs.exploring.result import ExploreResult
from iosched.jobs.exploring.score import ScoreError
from iosched.jobs.exploring.score_task import SCORE, Score, Scored
from iosched.jobs.exploring.scoring import Outcome, PrunedError
from iosched.jobs.exploring.settings import ExploreSettings, asked
from iosched.jobs.exploring.strategy import Feedback, Graph, Strategy
from iosched.jobs.interrupt import Interrupt
from iosched.jobs.optimize_task import optimize_on
from iosched.jobs.pool.messages import InterruptedTaskError, Progress, Step
from iosched.jobs.pool.task import Pending, Pool, Target, Task
from iosched.jobs.progress import Observer
from iosched.jobs.ranking.cost import ModelCost
from iosched.jobs.ranking.task import cost_task
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import ExecutionError, UsageError
from iosched.models.model import Model
from iosched.models.spaces.space import Space
from iosched.scheduler.document import ScheduleDocument

_ANY = "auto"
"""Where variants are scored of which no latency is asked for."""


def explore_on(
    pool: Pool,
    base: Model | None,
    space: Space,
    settings: ExploreSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> ExploreResult:
    """Tries variants of a model on the workers of a cluster; see `jobs.explore.explore`.

    Variants are made here, and the study is kept here: workers cost them and score them, one thing at a time. Nobody
    waits for a trial that others do not depend on. A trial whose worker is lost is evaluated by another.

    Raises:
        UsageError: the cluster lacks a device, variants are to be scored several as one, or what `explore` raises.
        DeviceError: there is no cluster, or a library is missing on it.
        DeviceLostError: all workers of a device were lost.
        KeyboardInterrupt: the user interrupts, and does not want the best variants known.
        And what `explore` raises.
    """
    if settings.score_batch > 1:
        raise UsageError("--score-batch and --cluster contradict each other: a worker scores one variant at a time")
    profile_db = settings.optimize.profile_db
    devices = {device: pool.target(device, profile_db) for device in asked(settings).devices or (_ANY,)}
    return explore(base, space, settings, observer, interrupt, _Workplace(pool, devices))


@dataclass(eq=False)
class _Trial:
    """A trial under way.

    Attributes:
        made: the variant.
        began: when, by `time.monotonic`.
        costs: what it costs, by device.
        costed: what is known of it; None as long as it is costed.
        score: what the score command says; None as long as it is not asked.
    """

    made: Made
    began: float
    costs: dict[str, Pending[Any]]
    costed: Costed | None = None
    score: Pending[Any] | None = None

    @property
    def waits_for(self) -> list[Pending[Any]]:
        """What it needs next."""
        return [self.score] if self.score is not None else list(self.costs.values())

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self.began


@dataclass(frozen=True, eq=False)
class _Workplace:
    """All workers of a pool; see `Workplace`.

    Attributes:
        devices: the devices that trials are costed for, or else the one that they are scored on, by the names that they
            are asked for by. They stay, also while the cluster is not reached.
    """

    pool: Pool
    devices: Mapping[str, Target]

    def tried(self, strategy: Strategy, evaluator: Evaluator, interrupt: Interrupt) -> bool:
        """Keeps as many trials under way as there are workers."""
        return _Trying(self.pool, self.devices, strategy, evaluator, interrupt).to_the_end()

    def document(self, model: Model, settings: OptimizeSettings) -> ScheduleDocument:
        """The schedule that a worker finds."""
        return optimize_on(self.pool, model, settings).document


@dataclass(eq=False)
class _Trying:
    """One call of `tried`.

    Attributes:
        devices: see `_Workplace`.
        trials: those under way, by number.
        same: trials of a variant that another trial under way is of.
        steps: what score commands have printed, with what they were asked by.
    """

    pool: Pool
    devices: Mapping[str, Target]
    strategy: Strategy
    evaluator: Evaluator
    interrupt: Interrupt
    trials: dict[int, _Trial] = field(default_factory=dict)
    same: list[Costed] = field(default_factory=list)
    steps: SimpleQueue[tuple[_Trial, Step]] = field(default_factory=SimpleQueue)

    def to_the_end(self) -> bool:
        """Tries variants until nothing more is to be tried; returns whether the user has ended it before."""
        try:
            while True:
                if self.interrupt.came:
                    self.interrupt.ask()
                    return True
                self._begin()
                if not self.trials and self.strategy.has_ended:
                    return False
                if not self.trials:
                    time.sleep(WAIT_S)  # for trials of other processes
                    continue
                self.pool.wait([each for trial in self.trials.values() for each in trial.waits_for])
                self._go_on()
        finally:
            for trial in self.trials.values():
                for future in trial.waits_for:
                    self.pool.stop(future, "now")

    def _begin(self) -> None:
        """Begins as many trials as workers are left without one."""
        while len(self.trials) < self.pool.n_up([each.workers for each in self.devices.values()]):
            graph = self.strategy.ask_graph()
            if graph is None:
                return
            self._make(graph)

    def _make(self, graph: Graph) -> None:
        began = time.monotonic()
        found = self.evaluator.made(graph, [trial.made for trial in self.trials.values()])
        if isinstance(found, Costed):
            found = replace(found, feedback=replace(found.feedback, seconds=time.monotonic() - began))
            if found.same_as is None:
                self.strategy.receive_feedback(graph, found.feedback)
            else:
                self.same.append(found)
            return
        settings = self.evaluator.settings
        about = (settings.measure, settings.optimize, found.variant.model, settings.trials)
        costs: dict[str, Pending[Any]] = {}
        try:
            for device in self.evaluator.asked.devices:
                costs[device] = self.pool.submit(cost_task(self.pool, self.devices[device], *about))
        except UsageError as error:  # too large to be sent
            self.strategy.receive_feedback(graph, replace(found.feedback, reason=str(error)))
            return
        self.trials[graph.number] = _Trial(found, began, costs)

    def _go_on(self) -> None:
        ready = [trial for trial in self.trials.values() if all(future.is_done for future in trial.waits_for)]
        with suppress(Empty):
            while True:  # what a command has printed comes before its result
                self._step(*self.steps.get_nowait())
        for trial in ready:
            self._next(trial)

    def _step(self, trial: _Trial, step: Step) -> None:
        """Ends a score command that is worse than others were."""
        is_worse = self.strategy.stops_early(trial.made.graph, step.step, step.value)
        if is_worse and trial.score is not None and not trial.score.is_done:
            self.pool.stop(trial.score, "pruned")

    def _next(self, trial: _Trial) -> None:
        """What a trial needs has come."""
        if trial.costed is None:
            trial.costed = self.evaluator.costed(trial.made, self._costs(trial))
            if trial.costed.variant is not None:
                self._ask_score(trial)
                return
            self._end(trial, replace(trial.costed.feedback, seconds=trial.seconds))
            return
        assert trial.score is not None
        self._end(trial, with_score(trial.costed.feedback, self._scored(trial.score), trial.seconds))

    def _costs(self, trial: _Trial) -> Iterator[tuple[str, ModelCost]]:
        for device, future in trial.costs.items():
            yield device, future.result()

    @property
    def _scores_on(self) -> str:
        return next(iter(self.devices.values())).workers

    def _ask_score(self, trial: _Trial) -> None:
        command = self.evaluator.asked.score
        assert command is not None
        graph, variant = trial.made.graph, trial.made.variant
        watched = command.keys[0] if self.evaluator.settings.prunes else None
        work = Score(f"trial-{graph.number:04}", command, str(Path.cwd()), variant.choices, watched)

        def hear(said: Progress | Step) -> None:
            if isinstance(said, Step):
                self.steps.put((trial, said))

        trial.score = self.pool.submit(Task(SCORE, work, variant.model, self._scores_on, on_said=hear))

    def _scored(self, future: Pending[Any]) -> Outcome:
        try:
            found: Scored = future.result()
        except ExecutionError as error:  # a variant that no worker survives, say
            return ScoreError(str(error))
        except InterruptedTaskError:  # its worker was lost before it had ended the command
            return PrunedError("pruned: worse than the median of other trials")
        if found.reason is not None:
            return PrunedError(found.reason) if found.is_pruned else ScoreError(found.reason)
        return found.values

    def _end(self, trial: _Trial, feedback: Feedback) -> None:
        """A trial is done, and those that are of the same variant."""
        number = trial.made.graph.number
        del self.trials[number]
        self.strategy.receive_feedback(trial.made.graph, feedback)
        for each in [each for each in self.same if each.same_as == number]:
            self.same.remove(each)
            self.strategy.receive_feedback(each.graph, again(each, feedback))
