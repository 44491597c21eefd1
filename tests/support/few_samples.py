"""The CPU's cost model with the least number of samples of a stage, for tests that need no good measurement."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from iosched.profiler.devices.cpu.measured_cost import STAGE_SETTINGS, CpuStageCost

FewSamples = partial(CpuStageCost, settings=replace(STAGE_SETTINGS, max_samples=STAGE_SETTINGS.min_samples))
