"""`evolution`: roulette, crossover and mutation, with the parameters published for EA-NAS (TPDS).

In generations, trial n belongs to generation n // population, so a generation can be evaluated concurrently, in any
order and by any number of processes; the next one begins when all have ended. A generation depends only on the study's
seed and the previous generation. In steady state, a trial is made from the best that ended before it began.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from iosched.jobs.exploring.pareto_front import Point, best_first, ranks
from iosched.models.graph import Scalar

P_MUTATION, P_CROSSOVER = 0.58, 0.5
"""Probabilities per individual and per pair, as published."""

Genome = Mapping[str, Scalar]
"""Choices by question, in the order of the questions."""

Candidates = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Parent:
    """An individual of the previous generation; fitter ones are more likely to be chosen."""

    genome: Genome
    fitness: float


def next_generation(
    parents: Sequence[Parent], candidates: Candidates, size: int, rng: random.Random
) -> tuple[Genome, ...]:
    """Selection, crossover and mutation.

    Draws `size` individuals by roulette, with replacement. Consecutive pairs exchange all genes after a random position
    with probability `P_CROSSOVER`. In each individual, one gene is drawn again from all its candidates with probability
    `P_MUTATION`. Then the fittest parent replaces the first individual. If the fitness of all is 0, all are equally
    likely.

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
    """Swaps all genes after a random position, including those that only one of the two has."""
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


def fitness(points: Sequence[Point], *, is_maximised: bool) -> list[float]:
    """The fitness of each individual for a roulette wheel, which takes nonnegative numbers.

    A single maximised objective that is never negative is the fitness itself if no constraint is violated, as published
    for EA-NAS. Otherwise, fitness is 1 in the last front, 2 in the one before, and so on.

    Args:
        is_maximised: whether the only objective is maximised.
    """
    if is_maximised and all(point.losses[0] <= 0 >= point.violation for point in points):
        return [-point.losses[0] for point in points]
    found = ranks(points)
    return [float(max(found) + 1 - rank) for rank in found]


def seed_of(seed: int, *parts: object) -> int:
    """A 31-bit seed from the study's seed and a purpose."""
    text = "\0".join(map(str, (seed, *parts)))
    return int.from_bytes(sha256(text.encode()).digest()[:4], "big") >> 1


def child_of_generation(population: int, seed: int, study: Study, trial: FrozenTrial) -> Genome:
    """The genome of a trial, from the previous generation; empty in the first one, or if all its trials failed."""
    generation, place = divmod(trial.number, population)
    before = study.get_trials(deepcopy=False)[max(generation - 1, 0) * population : generation * population]
    rng = random.Random(seed_of(seed, "generation", generation))
    return _children(study, before, population, rng)[place]


def child_of_best(population: int, seed: int, study: Study, trial: FrozenTrial) -> Genome:
    """The genome of a trial, from the best that ended before it began; empty in the first `population` trials.

    It depends on times stored in the study, so a process that takes over the trial makes the same genome.
    """
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if trial.number >= population else []
    begun = trial.datetime_start
    known = [each for each in ended if begun and each.datetime_complete and each.datetime_complete <= begun]
    different = list({tuple(each.params.items()): each for each in known}.values())
    best = best_first([_point(study, each) for each in different])[:population]
    rng = random.Random(seed_of(seed, "child", trial.number))
    return _children(study, [different[place] for place in best], 2, rng)[1]


def _children(study: Study, trials: Sequence[FrozenTrial], size: int, rng: random.Random) -> Sequence[Genome]:
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if not complete:
        return [{}] * size
    is_maximised = study.directions == [StudyDirection.MAXIMIZE]
    fits = fitness([_point(study, trial) for trial in complete], is_maximised=is_maximised)
    parents = [Parent(trial.params, fit) for trial, fit in zip(complete, fits, strict=True)]
    candidates = {
        name: distribution.choices
        for trial in trials
        for name, distribution in trial.distributions.items()
        if isinstance(distribution, CategoricalDistribution)
    }
    return next_generation(parents, candidates, size, rng)


def _point(study: Study, trial: FrozenTrial) -> Point:
    signs = [-1.0 if each is StudyDirection.MAXIMIZE else 1.0 for each in study.directions]
    losses = tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))
    return Point(losses, sum(max(each, 0.0) for each in trial.constraints.values()))


class Evolution(RandomSampler):
    """Answers with the genome of a trial, else at random.

    Args:
        child: makes the genome of a trial from the seed and earlier trials.
    """

    def __init__(self, child: Callable[[int, Study, FrozenTrial], Genome], seed: int) -> None:
        super().__init__(seed)
        self._child, self._seed = child, seed
        self._last: tuple[int, Genome] = (-1, {})

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The answer of the trial's genome, else a random one."""
        assert isinstance(param_distribution, CategoricalDistribution)
        candidates = param_distribution.choices
        if self._last[0] != trial.number:
            self._last = (trial.number, self._child(self._seed, study, trial))
        found = self._last[1].get(param_name)
        if found is not None and found in candidates:
            return found
        return random.Random(seed_of(self._seed, trial.number, param_name)).choice(candidates)
