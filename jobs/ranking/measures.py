"""What can be measured to find a latency, by the names that people give; nothing heavy is imported."""

from __future__ import annotations

from typing import Literal, get_args

Measure = Literal["none", "stages", "models"]
"""What is measured on an attached device: nothing, stages alone, or whole models too."""

MEASURES: tuple[Measure, ...] = get_args(Measure)
DEFAULT_MEASURE: Measure = "models"
