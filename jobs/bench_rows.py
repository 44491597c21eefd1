"""The rows that `bench` can measure, in a file that imports nothing heavy."""

from __future__ import annotations

from iosched.profiler.baselines.names import ON_CPU, ON_GPU
from iosched.scheduler.strategy_names import COMPARED, MEANINGS, ONE_SESSION

ROWS: dict[str, str] = {
    "iosched": "the choice of 'optimize' for this model",
    **{name: MEANINGS[name] for name in COMPARED},
    ONE_SESSION: "one operator after another, in a single onnxruntime session",
    **ON_CPU,
    **ON_GPU,
}
"""What each row is, by its name."""
