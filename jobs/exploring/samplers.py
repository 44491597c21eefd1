"""The samplers of a study: Optuna's and our own by name, and a class of the user's."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, BruteForceSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from iosched.jobs.exploring.evolution import Evolution, child_of_best, child_of_generation, seed_of
from iosched.models.errors import IoschedError, UsageError
from iosched.models.mutation.edit import AnswerError
from iosched.models.spaces.space import executed

_KEPT = 64
"""The number of cached samplers of running trials."""


@dataclass(frozen=True)
class SamplerKind:
    """A way to sample.

    Attributes:
        name: as the user gives it.
        sampler: makes Optuna's sampler from the study's seed.
        has_ended: whether nothing is left to try after these trials.
        has_to_wait: whether the next trial has to wait for running ones.
    """

    name: str
    sampler: Callable[[int], BaseSampler]
    has_ended: Callable[[Sequence[FrozenTrial]], bool] = lambda trials: False
    has_to_wait: Callable[[Sequence[FrozenTrial]], bool] = lambda trials: False


def kind_of(name: str, population: int) -> SamplerKind:
    """The sampler of this name, or the class `FILE.py:CLASS` or `MODULE:CLASS`, whose file or module is executed.

    Args:
        population: the number of individuals that evolution and NSGA-II breed from.
    """
    match name:
        case "random":
            return SamplerKind(name, partial(Reseeded, RandomSampler))
        case "grid":  # GridSampler needs all questions in advance, but they may depend on answers
            return SamplerKind(name, partial(Reseeded, BruteForceSampler), has_ended=_all_tried)
        case "tpe":
            return SamplerKind(name, partial(Reseeded, TPESampler))
        case "nsga2":
            return SamplerKind(name, partial(Reseeded, partial(NSGAIISampler, population_size=population)))
        case "evolution":
            child = partial(child_of_generation, population)
            return SamplerKind(name, partial(Evolution, child), has_to_wait=partial(_is_generation_running, population))
        case "steady-evolution":
            return SamplerKind(name, partial(Evolution, partial(child_of_best, population)))
    return _kind_of_class(name)


@contextmanager
def sampling(name: str) -> Iterator[None]:
    """Reports errors as those of the sampler, except errors of the storage."""
    try:
        yield
    except (IoschedError, StorageInternalError, UpdateFinishedTrialError, SQLAlchemyError):
        raise
    except (Exception, SystemExit) as error:
        raise AnswerError(f"--sampler {name} failed: {type(error).__name__}: {error}") from error


def _kind_of_class(name: str) -> SamplerKind:
    build = _found_class(name)
    takes_seed = "seed" in signature(build).parameters
    with sampling(name):
        sampler = _without_warning(partial(build, seed=0) if takes_seed else build)
    return SamplerKind(name, partial(Reseeded, build, by_question=False) if takes_seed else lambda seed: sampler)


def _found_class(name: str) -> Callable[..., BaseSampler]:
    source, _, what = name.rpartition(":")
    try:
        module = executed(Path(source)) if source.endswith(".py") else import_module(source)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"--sampler {name}: module {source!r} cannot be imported: {error}") from error
    found = getattr(module, what, None)
    if isinstance(found, type) and issubclass(found, BaseSampler):
        return found
    fault = "does not exist" if found is None else "is not a subclass of optuna.samplers.BaseSampler"
    raise UsageError(f"--sampler {name}: {what!r} {fault}")


class Reseeded(BaseSampler):
    """A sampler that is rebuilt with a separate seed for each trial, or even for each question.

    A single sampler with one seed would repeat its random numbers whenever a study continues.
    """

    def __init__(self, build: Callable[..., BaseSampler], seed: int, *, by_question: bool = True) -> None:
        self._built = lru_cache(_KEPT)(lambda *parts: _without_warning(partial(build, seed=seed_of(seed, *parts))))
        self._by_question = by_question

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Begins a trial."""
        self._built(trial.number).before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The questions that are answered together."""
        return self._built(trial.number).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The answers to questions that are answered together."""
        return self._built(trial.number).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The answer to one question."""
        question = (param_name,) if self._by_question else ()
        return self._built(trial.number, *question).sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Ends a trial."""
        self._built(trial.number).after_trial(study, trial, state, values)


def _without_warning(build: Callable[[], BaseSampler]) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return build()


def _is_generation_running(population: int, trials: Sequence[FrozenTrial]) -> bool:
    return bool(trials) and len(trials) % population == 0 and not all(trial.state.is_finished() for trial in trials)


def _all_tried(trials: Sequence[FrozenTrial]) -> bool:
    """Whether each answer to each question was given, or is being evaluated. O(answers)."""
    given: dict[tuple[object, ...], set[object]] = defaultdict(set)
    candidates: dict[tuple[object, ...], int] = {}
    for trial in trials:
        before: tuple[object, ...] = ()  # earlier answers determine the question
        for name, distribution in trial.distributions.items():
            assert isinstance(distribution, CategoricalDistribution)
            candidates[before] = len(distribution.choices)
            given[before].add(trial.params[name])
            before = (*before, trial.params[name])
    return bool(trials) and all(len(given[place]) == count for place, count in candidates.items())
