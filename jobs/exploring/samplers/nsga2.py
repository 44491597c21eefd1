"""`nsga2`: generations of the best fronts, by crossover and mutation (Deb et al., 2002).

Questions that only some variants are asked are answered at random.
"""

from __future__ import annotations

from optuna.samplers import BaseSampler, NSGAIISampler

from iosched.jobs.exploring.samplers.kind import Kind, seeded_by_trial


def nsga2(population: int) -> Kind:
    """The sampler with so many individuals in a generation."""

    def build(seed: int) -> BaseSampler:
        return NSGAIISampler(population_size=population, seed=seed)

    return Kind(seeded_by_trial(build))
