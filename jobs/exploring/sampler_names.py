"""The names of the samplers, for those who only list them."""

from __future__ import annotations

SAMPLER_NAMES = ("random", "grid", "evolution", "steady-evolution", "tpe", "nsga2")
DEFAULT_SAMPLER = "evolution"
DEFAULT_POPULATION = 20
