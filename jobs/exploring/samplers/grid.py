"""`grid`: every variant of the space once.

It is Optuna's BruteForceSampler, since GridSampler has to be told all questions beforehand, and which questions there
are may depend on answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, BruteForceSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from iosched.jobs.exploring.samplers.kind import Kind, seeded_by_trial


class _Asked(BruteForceSampler):
    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Does nothing: Optuna would stop a loop of its own here, and there is none."""


def _build(seed: int) -> BaseSampler:
    return _Asked(seed)


@dataclass
class _Tree:
    """Questions as they were asked: the first one, and below each of its candidates those that followed that answer."""

    candidates: int = 0
    below: dict[int, _Tree] = field(default_factory=dict)

    @property
    def is_exhausted(self) -> bool:
        return len(self.below) == self.candidates and all(tree.is_exhausted for tree in self.below.values())


def has_ended(trials: Sequence[FrozenTrial]) -> bool:
    """Whether every answer to every question was given, or is being given. O(answers)."""
    root = _Tree()
    for trial in trials:
        tree = root
        for name, distribution in trial.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                tree.candidates = len(distribution.choices)
                tree = tree.below.setdefault(distribution.choices.index(trial.params[name]), _Tree())
    return bool(trials) and root.is_exhausted


KIND = Kind(seeded_by_trial(_build), has_ended)
