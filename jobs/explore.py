"""The job `explore`: costs variants of a model as they would ship, scores them by a user's command, and ranks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosched.jobs.exploring.explore_result import Chosen, ExploreResult, Individual, StudyHistory
from iosched.jobs.exploring.explore_settings import ExploreSettings, parse_settings
from iosched.jobs.exploring.locking import machine
from iosched.jobs.exploring.objectives import Card
from iosched.jobs.exploring.score import SCORE
from iosched.jobs.exploring.trials import InterruptedTrialError, Trials
from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.optimize_task import OPTIMIZE, Optimize, optimize_on
from iosched.jobs.pool.local import LocalPool
from iosched.jobs.pool.task import Task, WorkerPool
from iosched.jobs.ranking.rank_task import Cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceError, IoschedError
from iosched.models.model import Model
from iosched.models.mutation.record import Record
from iosched.models.mutation.variant import replay
from iosched.models.spaces.space import Space
from iosched.profiler.devices.resolve import check_system, resolve
from iosched.runtime.missing_dependencies import way_to_install
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import fitted

if TYPE_CHECKING:
    from iosched.jobs.exploring.study import OpenedStudy

__all__ = ["ExploreResult", "ExploreSettings", "explore", "study_in"]

_ANY = "auto"
"""The device for variants without a latency objective."""


def explore(
    base: Model | None,
    space: Space,
    settings: ExploreSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    pool: WorkerPool | None = None,
) -> ExploreResult:
    """Evaluates variants of a model and finds the best by several objectives.

    A sampler chooses mutations of the base model; a variant's latency is as `optimize` would ship it. A study in the
    file continues; several processes may share it.

    Args:
        base: the base model; None for that of the space.
        interrupt: defers interruptions between trials and during score commands; by default they are raised at once. A
            trial without a result is evaluated again when the study continues.
        pool: whose workers cost and score variants; by default this machine, one variant after another.

    Raises:
        UsageError: a setting is wrong, the file is not a study or has another subject, or no mutator of the space
            matches the base model.
        InvalidModelError: the space's base model cannot be run.
        DeviceError: this is not Linux, Optuna is not installed, a device or library is missing, or there is no cluster.
        DeviceLostError: all workers of a device were lost.
        ExecutionError: the file cannot be written, as on a full disk.
        KeyboardInterrupt: the user interrupts and declines the best variants known.
    """
    started = time.monotonic()
    check_system()
    check_optuna()
    from iosched.jobs.exploring.samplers import kind_of
    from iosched.jobs.exploring.storage import using
    from iosched.jobs.exploring.study import StudyStrategy, begun_study

    wanted, kind = parse_settings(settings), kind_of(settings.sampler, settings.population)
    models = space.begun(base)
    card = Card(*_identity(models, space), space.name, wanted.objectives, wanted.constraints, settings.seed)
    storage, held, shown = Path(settings.storage), interrupt or Uninterrupted(), observer or Silence()
    with _pool_of(pool, settings, held) as workers, held.holding(), using(storage):
        targets = {name: workers.target(name, settings.optimize.profile_db) for name in wanted.devices or (_ANY,)}
        opened = begun_study(storage, card)
        strategy = StudyStrategy(opened, kind, settings.trials, settings.budget_s)
        before = len(_found(opened).finished)
        trials = Trials(models, space, wanted, settings, workers, targets, strategy, shown, held)
        with strategy.evaluating():
            was_interrupted = trials.run()
        found = _found(opened)
        device = next(iter(wanted.devices), settings.optimize.device)
        ships = partial(_shipped, models, replace(settings.optimize, device=device), workers)
        chosen, notes = _chosen(found, settings.top, ships, shown)
    left = () if was_interrupted else _missing(before, found, settings)
    refused = "Variants were scored one by one because scoring several as one model failed: "
    notes = (*left, *(f"{refused}{each}" for each in trials.refusals), *notes)
    return ExploreResult(found, chosen, time.monotonic() - started, notes, was_interrupted)


def _identity(models: Sequence[Model], space: Space) -> tuple[str, str]:
    if len(models) == 1:
        return models[0].digest, models[0].name
    return sha256("".join(model.digest for model in models).encode()).hexdigest(), space.name


def _missing(before: int, found: StudyHistory, settings: ExploreSettings) -> tuple[str, ...]:
    counted = f"No trial was added: --trials and --budget include earlier calls, and the study already has {before}"
    notes = () if len(found.finished) > before else (f"{counted} trials.",)
    missing = settings.trials - len(found.individuals)
    if missing <= 0:
        return notes
    what = f"{missing} of {settings.trials} trials were not made:"
    if settings.budget_s is None or found.seconds < settings.budget_s:
        return (*notes, f"{what} the sampler {settings.sampler!r} has no further variants.")
    limit = f"the trials of the study took {found.seconds:.1f} s of the --budget of {settings.budget_s:g} s."
    return (*notes, f"{what} {limit} Continue with a larger --budget.")


def study_in(path: Path) -> StudyHistory:
    """The study in a file.

    Raises:
        UsageError: there is none.
        DeviceError: Optuna is not installed.
    """
    check_optuna()
    from iosched.jobs.exploring.study import opened_study

    return _found(opened_study(path))


def check_optuna() -> None:
    """Checks that Optuna is installed.

    Raises:
        DeviceError: it is not.
    """
    if find_spec("optuna") is None:
        raise DeviceError(f"Optuna, which stores studies, is not installed; {way_to_install('explore')}")


def _found(opened: OpenedStudy) -> StudyHistory:
    return StudyHistory(opened.path, opened.card, tuple(opened.history()))


def _pool_of(
    pool: WorkerPool | None, settings: ExploreSettings, interrupt: Interrupt
) -> AbstractContextManager[WorkerPool]:
    """The pool, or this machine, where measurements run exclusively and score commands concurrently."""
    if pool is not None:
        return nullcontext(pool)

    def waiting() -> None:
        if interrupt.came:
            raise InterruptedTrialError

    def guard(task: Task[Any]) -> AbstractContextManager[None]:
        if task.kind is SCORE:
            return machine("scoring", waiting)
        assert isinstance(task.work, Cost | Optimize)
        is_measured = resolve(task.work.settings.device, task.model).info.cost_kind == "measured"
        if not is_measured or (settings.measure == "none" and task.kind is not OPTIMIZE):
            return nullcontext()
        return machine("measuring") if task.kind is OPTIMIZE else machine("measuring", waiting)

    return LocalPool(guard=guard, interrupt=interrupt)


def _chosen(
    found: StudyHistory, top: int, ships: Callable[[Individual], Chosen], observer: Observer
) -> tuple[tuple[Chosen, ...], tuple[str, ...]]:
    best = [each for _, each in found.ranked()[:top]]
    chosen, notes = list[Chosen](), list[str]()
    for place, each in enumerate(best):
        observer.progress(place, len(best), f"schedule of trial {each.number}")
        try:
            chosen.append(ships(each))
        except DeviceError:
            raise
        except IoschedError as error:
            notes.append(f"Trial {each.number} was not written: {error}")
    return tuple(chosen), tuple(notes)


def _shipped(bases: Sequence[Model], settings: OptimizeSettings, pool: WorkerPool, individual: Individual) -> Chosen:
    """The variant with the schedule of its latency, or with a new one if latencies are estimates."""
    feedback = individual.feedback
    record = Record.from_json(feedback.record or "")
    model = replay(next((base for base in bases if base.digest == record.base), bases[0]), record)
    if feedback.schedule is None:
        return Chosen(individual.number, model, optimize_on(pool, model, settings).document)
    return Chosen(individual.number, model, fitted(ScheduleDocument.from_json(feedback.schedule), model))
