"""`evolution`: generations by roulette, crossover and mutation, with the numbers that were published for EA-NAS (TPDS).

Trial n belongs to generation n // population, so all of a generation can be evaluated side by side, in any order and by
any number of processes; the next one begins when all are. What is made is a function of the study's seed and of the
generation before alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from iosched.jobs.exploring.samplers.kind import Kind, seed_of
from iosched.models.graph import Scalar

P_MUTATION, P_CROSSOVER = 0.58, 0.5
"""For each individual, and for each pair of them, as published."""

Genome = Mapping[str, Scalar]
"""What was chosen, by the questions' names, in the order in which they were asked."""

Candidates = Mapping[str, Sequence[Scalar]]


@dataclass(frozen=True)
class Parent:
    """An individual of the generation before; the fitter, the likelier it is chosen."""

    genome: Genome
    fitness: float


def next_generation(
    parents: Sequence[Parent], candidates: Candidates, size: int, rng: random.Random
) -> tuple[Genome, ...]:
    """Selection, crossover and mutation; what the paper leaves open is decided here.

    As many individuals as there are to be are drawn by roulette, with replacement. Two that follow each other are a
    pair, and exchange with `P_CROSSOVER` all genes behind one place, which is drawn. Of each, with `P_MUTATION`, one
    gene is drawn anew from all of its candidates. Then the fittest parent takes the place of the first. Where all are
    unfit, all are equally likely.

    Args:
        parents: at least one.
        candidates: of each question that is a gene of a parent.
    """
    weights = [parent.fitness for parent in parents]
    chosen = rng.choices(parents, weights if any(weights) else None, k=size)
    genomes = [dict(parent.genome) for parent in chosen]
    for a, b in zip(genomes[::2], genomes[1::2], strict=False):
        if rng.random() < P_CROSSOVER:
            _cross(a, b, rng)
    for genome in genomes:
        if rng.random() < P_MUTATION:
            _mutate(genome, candidates, rng)
    return (max(parents, key=lambda parent: parent.fitness).genome, *genomes[1:])


def _cross(a: dict[str, Scalar], b: dict[str, Scalar], rng: random.Random) -> None:
    """Exchanges the genes behind a place in `a`: those that both have, and those that one of the two alone has."""
    names = list(dict.fromkeys((*a, *b)))
    if len(names) < 2:
        return
    for name in names[rng.randrange(1, len(names)) :]:
        of_a, of_b = a.pop(name, None), b.pop(name, None)
        if of_b is not None:
            a[name] = of_b
        if of_a is not None:
            b[name] = of_a


def _mutate(genome: dict[str, Scalar], candidates: Candidates, rng: random.Random) -> None:
    if genome:
        name = rng.choice(list(genome))
        genome[name] = rng.choice(candidates[name])


def evolution(population: int, fitness: Callable[[Sequence[FrozenTrial]], Sequence[float]]) -> Kind:
    """The sampler with so many individuals in a generation.

    Args:
        fitness: of each of the trials of a generation, at least 0; those without a result are unfit.
    """

    def has_to_wait(trials: Sequence[FrozenTrial]) -> bool:
        running = (TrialState.RUNNING, TrialState.WAITING)
        return bool(trials) and len(trials) % population == 0 and any(trial.state in running for trial in trials)

    return Kind(lambda seed: _Evolution(population, fitness, seed), has_to_wait=has_to_wait)


class _Evolution(BaseSampler):
    """Answers by the genome of a trial; what is no gene of it is answered at random."""

    def __init__(self, population: int, fitness: Callable[[Sequence[FrozenTrial]], Sequence[float]], seed: int) -> None:
        self._population = population
        self._fitness = fitness
        self._seed = seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """No question: which are asked is not known before."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The answer of the trial's genome."""
        assert isinstance(param_distribution, CategoricalDistribution)
        candidates = param_distribution.choices
        found = self._genome(study, trial.number).get(param_name)
        if found is not None and found in candidates:
            return found
        return random.Random(seed_of(self._seed, trial.number, param_name)).choice(candidates)

    def _genome(self, study: Study, number: int) -> Genome:
        generation, place = divmod(number, self._population)
        if generation == 0:
            return {}
        trials = study.get_trials(deepcopy=False)[(generation - 1) * self._population : generation * self._population]
        fitness = self._fitness(trials)
        parents = [
            Parent(trial.params, fit)
            for trial, fit in zip(trials, fitness, strict=True)
            if trial.state is TrialState.COMPLETE
        ]
        if not parents:
            return {}
        candidates = {
            name: [each for each in distribution.choices if each is not None]
            for trial in trials
            for name, distribution in trial.distributions.items()
            if isinstance(distribution, CategoricalDistribution)
        }
        rng = random.Random(seed_of(self._seed, "generation", generation))
        return next_generation(parents, candidates, self._population, rng)[place]
