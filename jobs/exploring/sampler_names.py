"""The names of the samplers, for those who only list them."""

from __future__ import annotations

from typing import Literal, get_args

SamplerName = Literal["random", "grid", "evolution", "tpe", "nsga2"]
SAMPLER_NAMES: tuple[SamplerName, ...] = get_args(SamplerName)
DEFAULT_SAMPLER: SamplerName = "evolution"
DEFAULT_POPULATION = 20
