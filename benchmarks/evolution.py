"""Counts the distinct individuals of 400 that an evolution evaluates: `python evolution.py`.

EA-Pelee's genome of 12 integers, 20 individuals and 20 generations, with a made-up accuracy that grows with the
network, from 0.85 to 0.95, plus noise. The paper evaluated 219 to 236. Nothing is measured.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from iosched.jobs.exploring.evolution import Candidates, Genome, Parent, next_generation
from iosched.models.spaces.pelee import EA_PELEE

POPULATION, GENERATIONS, SEEDS = 20, 20, 20


def accuracy(genome: Genome, candidates: Candidates) -> float:
    size = statistics.mean(float(value) / float(max(candidates[name])) for name, value in genome.items())
    return 0.85 + 0.1 * size + random.Random(str(sorted(genome.items()))).gauss(0, 0.002)


def evaluated(candidates: Candidates, seed: int) -> int:
    rng = random.Random(seed)
    genomes = range(POPULATION)
    population: Sequence[Genome] = [{name: rng.choice(values) for name, values in candidates.items()} for _ in genomes]
    seen: set[str] = set()
    for _ in range(GENERATIONS):
        seen |= {str(sorted(genome.items())) for genome in population}
        parents = [Parent(genome, accuracy(genome, candidates)) for genome in population]
        population = next_generation(parents, candidates, POPULATION, rng)
    return len(seen)


def main() -> None:
    candidates = {question.name: question.candidates for question in EA_PELEE.questions()}
    counts = [evaluated(candidates, seed) for seed in range(SEEDS)]
    middle = statistics.median(counts)
    print(f"{min(counts)} to {max(counts)} of {POPULATION * GENERATIONS}, median {middle:g} of {SEEDS} seeds: {counts}")


if __name__ == "__main__":
    main()
