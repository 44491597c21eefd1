"""What a sampler is to a study, and how its choices come from a study's seed and a trial's number alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial


def _never(trials: Sequence[FrozenTrial]) -> bool:
    del trials
    return False


@dataclass(frozen=True)
class Kind:
    """A way to sample.

    Attributes:
        sampler: makes Optuna's sampler from the study's seed.
        has_ended: whether, after these trials, nothing is left to be tried.
        has_to_wait: whether the next trial cannot begin before those that run have ended.
    """

    sampler: Callable[[int], BaseSampler]
    has_ended: Callable[[Sequence[FrozenTrial]], bool] = _never
    has_to_wait: Callable[[Sequence[FrozenTrial]], bool] = _never


def seed_of(seed: int, *parts: object) -> int:
    """A seed of 31 bits for one purpose, made of the study's seed and what the purpose is."""
    text = "\0".join(map(str, (seed, *parts)))
    return int.from_bytes(sha256(text.encode()).digest()[:4], "big") >> 1


def seeded_by_trial(build: Callable[[int], BaseSampler]) -> Callable[[int], BaseSampler]:
    """Makes of a study's seed a sampler that is built anew for each trial and question; see `SeededByTrial`."""
    return lambda seed: SeededByTrial(build, seed)


class SeededByTrial(BaseSampler):
    """A sampler of Optuna's whose random numbers come from the trial's number and the question.

    One sampler with one seed would begin its numbers anew each time a study goes on, and so repeat itself; and a trial
    that is taken over in the middle would get other answers.
    """

    def __init__(self, build: Callable[[int], BaseSampler], seed: int) -> None:
        self._build = build
        self._seed = seed
        self._relative: BaseSampler | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The questions that are answered together."""
        self._relative = self._built(trial)
        return self._relative.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The answers to questions that are answered together."""
        assert self._relative is not None
        return self._relative.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The answer to one question."""
        return self._built(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def _built(self, trial: FrozenTrial, *question: str) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return self._build(seed_of(self._seed, trial.number, *question))
