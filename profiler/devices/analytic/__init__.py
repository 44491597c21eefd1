"""Latencies of stages on GPUs that are not at hand, by a model; see docs/analytic-model.md."""

from iosched.profiler.devices.analytic.calibration import CALIBRATION, Calibration
from iosched.profiler.devices.analytic.cost import AnalyticCost

__all__ = ["CALIBRATION", "AnalyticCost", "Calibration"]
