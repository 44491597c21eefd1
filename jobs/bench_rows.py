"""The rows that `bench` can measure, in a file that imports nothing heavy."""

from __future__ import annotations

from iosched.profiler.baselines.names import ON_CPU, ON_GPU
from iosched.scheduler.strategies import COMPARED, MEANINGS, ONE_SESSION

ROWS: dict[str, str] = {
    "iosched": "what 'optimize' chose for this model",
    **{name: MEANINGS[name] for name in COMPARED},
    ONE_SESSION: "one operator after another, all in one session of onnxruntime",
    **ON_CPU,
    **ON_GPU,
}
"""What each row is, by its name."""
