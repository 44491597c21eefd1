"""A study in a file, shared by any number of processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from iosched.jobs.exploring.explore_result import Feedback, Individual, State
from iosched.jobs.exploring.locking import study_lock
from iosched.jobs.exploring.objectives import CARD_KEY, Card, card_of, total_violation
from iosched.jobs.exploring.pareto_front import Point
from iosched.jobs.exploring.samplers import SamplerKind, sampling
from iosched.jobs.exploring.storage import STUDY_NAME, open_storage, reading
from iosched.models.errors import UsageError
from iosched.models.mutation.edit import Question
from iosched.models.prepared import prepare
from iosched.profiler.store.process import is_alive, this_process

_CLAIM, _FEEDBACK = "claim", "feedback"
_BEAT_S, _SILENT_S = 10.0, 60.0
"""Seconds between a process's signs of life for a trial, and seconds without one after which it counts as ended."""

_MOST_ATTEMPTS = 3
_DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}

_ENDED: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed",
}  # fmt: skip


class _Claim(msgspec.Struct, frozen=True):
    """The process that evaluates a trial (empty if released), its last sign of life (Unix time), and the attempt."""

    process: str
    at: float
    attempt: int

    @property
    def has_lapsed(self) -> bool:
        """Whether the process has ended or released the trial, as far as this machine can tell."""
        alive = None
        with suppress(ValueError):  # not written by iosched
            alive = is_alive(self.process) if self.process else False
        is_own_machine = self.process.split(" ")[0] in ("", this_process().split(" ")[0])
        if alive or (alive is False and is_own_machine):
            return not alive
        return abs(time.time() - self.at) > _SILENT_S


prepare(Feedback, _Claim)


@dataclass(frozen=True)
class OpenedStudy:
    """A study and its subject."""

    path: Path
    study: optuna.Study
    card: Card

    def trials(self) -> Sequence[FrozenTrial]:
        """All trials by their numbers, as they are in the file now."""
        with reading(self.path):
            return self.study.get_trials(deepcopy=False)

    def history(self) -> Sequence[Individual]:
        """All trials by their numbers."""
        return [self._individual(trial) for trial in self.trials()]

    def _individual(self, trial: FrozenTrial) -> Individual:
        feedback, state = self._feedback(trial), _ENDED.get(trial.state, "running")
        point = self.point(feedback) if state == "complete" else None
        return Individual(trial.number, state, dict(trial.params), feedback, point)

    def _feedback(self, trial: FrozenTrial) -> Feedback:
        try:
            return msgspec.convert(trial.user_attrs.get(_FEEDBACK, {}), Feedback)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.path} is damaged: trial {trial.number}: {error}") from None

    def point(self, feedback: Feedback) -> Point | None:
        """The values by which variants compare; None if one is missing."""
        values = feedback.values
        if any(name not in values for name in self.card.names):
            return None
        losses = tuple(each.loss(values[each.name]) for each in self.card.objectives)
        return Point(losses, total_violation(self.card.constraints, values))


def opened_study(path: Path) -> OpenedStudy:
    """The study in a file."""
    storage = open_storage(path, makes=False)
    with reading(path):
        if STUDY_NAME not in optuna.get_all_study_names(storage):
            raise UsageError(f"{path} has no study yet: it was stopped before its first trial")
        study = optuna.load_study(study_name=STUDY_NAME, storage=storage)
    return OpenedStudy(path, study, card_of(study.user_attrs.get(CARD_KEY), str(path)))


def begun_study(path: Path, card: Card) -> OpenedStudy:
    """The study in a file, created if missing."""
    with study_lock(path), reading(path):
        storage, ways = open_storage(path, makes=True), [_DIRECTIONS[each.direction] for each in card.objectives]
        study = optuna.create_study(storage=storage, study_name=STUDY_NAME, directions=ways, load_if_exists=True)
        if CARD_KEY not in study.user_attrs and not study.get_trials(deepcopy=False):
            study.set_user_attr(CARD_KEY, card.plain())
        found = card_of(study.user_attrs.get(CARD_KEY), str(path))
    found.check_same(card, str(path))
    return OpenedStudy(path, study, found)


class StudyStrategy:
    """The strategy of one process, with the calls of Retiarii's strategies (OSDI'20, figure 11); a sampler answers.

    A graph is a variant to make and evaluate, identified by the number of its trial. The study ends after `trials`
    trials, or `budget_s` seconds of evaluation, over all calls and processes.

    Attributes:
        has_ended: whether nothing is left to try.
    """

    def __init__(self, opened: OpenedStudy, kind: SamplerKind, trials: int, budget_s: float | None = None) -> None:
        self._opened = opened
        self._limits = trials, budget_s
        self._kind = kind
        self._running: dict[int, Trial] = {}
        self._stopped = Event()
        self.has_ended = False
        opened.study.sampler = kind.sampler(opened.card.seed)
        opened.study.stop = self._stopped.set  # type: ignore[method-assign]  # Optuna's works only in its own loop

    def ask_graph(self) -> int | None:
        """The next graph: of a trial whose process has ended, or else of a new one; None if there is none now."""
        with study_lock(self._opened.path):
            trials = self._opened.trials()
            waiting = (each for each in trials if each.state is TrialState.RUNNING and each.number not in self._running)
            taken = (number for each in waiting if (number := self._taken_over(each)) is not None)
            if (number := next(taken, None)) is not None:
                return number
            self.has_ended = self._is_at_its_end(trials)
            if self.has_ended or self._kind.has_to_wait(trials):
                return None
            with sampling(self._kind.name):
                return self._claimed(self._opened.study.ask(), 1)

    def _is_at_its_end(self, trials: Sequence[FrozenTrial]) -> bool:
        most, budget_s = self._limits
        if len(trials) >= most or self._stopped.is_set() or self._kind.has_ended(trials):
            return True
        return budget_s is not None and sum(self._opened._feedback(trial).seconds for trial in trials) >= budget_s

    def _taken_over(self, trial: FrozenTrial) -> int | None:
        """The same trial with its earlier answers; None if a process is evaluating it."""
        study = self._opened.study
        claim = _claim_of(trial)
        if claim is not None and not claim.has_lapsed:
            return None
        attempt = 1 if claim is None else claim.attempt + 1
        with sampling(self._kind.name):
            taken = Trial(study, trial._trial_id)
        if attempt > _MOST_ATTEMPTS:
            reason = f"the process ended {_MOST_ATTEMPTS} times during its evaluation, perhaps for lack of memory"
            taken.set_user_attr(_FEEDBACK, msgspec.to_builtins(Feedback(reason=reason)))
            study.tell(taken, state=TrialState.FAIL)
            return None
        return self._claimed(taken, attempt)

    def _claimed(self, trial: Trial, attempt: int) -> int:
        trial.set_user_attr(_CLAIM, msgspec.to_builtins(_Claim(this_process(), time.time(), attempt)))
        self._running[trial.number] = trial
        return trial.number

    def ask_choice(self, graph: int, question: Question) -> int:
        """The index of the chosen candidate."""
        trial, candidates = self._running[graph], question.candidates
        with sampling(self._kind.name):
            return candidates.index(trial.suggest_categorical(question.name, candidates))

    def stops_early(self, graph: int, step: int, value: float) -> bool:
        """Whether the value is worse than the median of other trials at this step."""
        trial = self._running[graph]
        trial.report(value, step)
        return trial.should_prune()

    def receive_feedback(self, graph: int, feedback: Feedback) -> None:
        """Stores the result of a graph, unless another process has taken it over."""
        trial = self._running.pop(graph)
        state, values = TrialState.PRUNED if feedback.is_stopped else TrialState.FAIL, None
        if feedback.reason is None and self._opened.point(feedback) is not None:
            state = TrialState.COMPLETE
            values = [feedback.values[each.name] for each in self._opened.card.objectives]
        with suppress(UpdateFinishedTrialError):
            trial.set_user_attr(_FEEDBACK, msgspec.to_builtins(feedback))
            for each in self._opened.card.constraints:
                if each.name in feedback.values and str(each) not in trial.constraints:
                    trial.set_constraint(str(each), each.violation(feedback.values[each.name]))
            with sampling(self._kind.name):
                self._opened.study.tell(trial, values, state, skip_if_finished=True)

    def history(self) -> Sequence[Individual]:
        """All trials by their numbers."""
        return self._opened.history()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Signals in the file that this process evaluates its trials.

        Finally releases those without a result.
        """
        ended = Event()
        thread = Thread(target=self._beat, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            for trial in self._running.values():  # this process continues without evaluating them
                with suppress(UpdateFinishedTrialError):
                    _sign(trial, "", -1)
            self._running.clear()

    def _beat(self, ended: Event) -> None:
        while not ended.wait(_BEAT_S):
            for trial in list(self._running.values()):
                with suppress(UpdateFinishedTrialError, optuna.exceptions.StorageInternalError):
                    _sign(trial, this_process(), 0)


def _sign(trial: Trial, process: str, attempts: int) -> None:
    claim = msgspec.convert(trial.user_attrs[_CLAIM], _Claim)
    plain: Any = msgspec.to_builtins(_Claim(process, time.time(), claim.attempt + attempts))
    trial.storage.set_trial_user_attr(trial._trial_id, _CLAIM, plain)


def _claim_of(trial: FrozenTrial) -> _Claim | None:
    try:
        return msgspec.convert(trial.user_attrs.get(_CLAIM), _Claim)
    except msgspec.ValidationError:
        return None  # its process ended before claiming it
