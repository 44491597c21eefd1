"""Names of the kinds of measurements, without heavy imports."""

from __future__ import annotations

from typing import Literal, get_args

Measure = Literal["none", "stages", "models"]
"""Measurements on an attached device."""

MEASURES: tuple[Measure, ...] = get_args(Measure)
DEFAULT_MEASURE: Measure = "models"
