"""Regularized evolution (Real et al., AAAI 2019), a sampler for `iosched explore`; needs Optuna.

    iosched explore --space builtin:nasnet --sampler examples/regularized_evolution.py:RegularizedEvolution

The oldest member of the population is removed, however good it is. A child is the best of a sample with one choice
changed. Of several objectives, the first counts.
"""

from __future__ import annotations

import random
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState


class RegularizedEvolution(BaseSampler):
    """Created for each trial, with its own seed; the state is in the study."""

    population, sample = 100, 25  # as published

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._parent: dict[str, Any] = {}
        self._mutated = ""

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Chooses the parent, and the choice to change."""
        ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        alive = sorted(ended, key=lambda each: (str(each.datetime_complete), each.number))[-self.population :]
        if len(alive) == self.population:
            best = max if study.directions[0] is StudyDirection.MAXIMIZE else min
            self._parent = best(self._random.sample(alive, self.sample), key=lambda each: each.values[0]).params
            self._mutated = self._random.choice([*self._parent])

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Empty: questions are answered one by one."""
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        """Empty, as the search space."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The parent's answer, a different one for the changed choice, or any if the parent has none."""
        assert isinstance(param_distribution, CategoricalDistribution)
        answer, choices = self._parent.get(param_name), param_distribution.choices
        if param_name == self._mutated:
            return self._random.choice([choice for choice in choices if choice != answer])
        return answer if param_name in self._parent else self._random.choice(choices)
