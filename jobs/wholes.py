"""What `optimize` finds of a whole model, kept beside the sum of the latencies of its stages.

A later job then knows what the model takes without measuring it again, and how far sums of stages are from what whole
models take on this device.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime

from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.verdict import Verdict
from iosched.models.model import Model
from iosched.profiler.devices.cost import known_us
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.measuring.statistics import LEAST_SAMPLES
from iosched.profiler.store.tables import WholeRow
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import sum_us
from iosched.scheduler.search import SearchResult


def whole_key(model: Model, settings: OptimizeSettings, here: OpenModelHere) -> str:
    """A digest of the model, its shapes, what is searched for, and which libraries take part."""
    pruning = settings.pruning
    asked = [settings.strategy, pruning.r, pruning.s, settings.objective, here.opened_with]
    text = json.dumps([model.digest, sorted(model.bindings.items()), asked, sorted(here.versions.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def keep_whole(
    model: Model, settings: OptimizeSettings, here: OpenModelHere, found: SearchResult, verdict: Verdict
) -> None:
    """Keeps what the model takes as it ships, if it was measured as a whole, and all of its stages alone."""
    shipped = verdict.wholes.get("measured" if verdict.shipped == "iosched" else verdict.shipped)
    if settings.schedule_from is not None or shipped is None or len(shipped.samples_us) < LEAST_SAMPLES:
        return
    total_us, sequential_us = found.schedule.predicted_us, operators_us(here)
    if total_us is None or sequential_us is None or not math.isfinite(total_us):
        return
    here.cost.database.keep_whole(
        WholeRow(
            device=here.cost.device,
            key=whole_key(model, settings, here),
            measured_at=datetime.now(UTC),
            shipped=verdict.shipped,
            samples_us=shipped.samples_us,
            sequential_us=verdict.wholes["sequential"].samples_us,
            stages=len(tuple(found.schedule.stages)),
            sum_us=total_us,
            sequential_sum_us=sequential_us,
        )
    )


def operators_us(here: OpenModelHere) -> float | None:
    """The sum of the latencies of single operators in microseconds; None where one of them was not measured."""
    return sum_us(known_us(here.cost, stage) for stage in sequential(here.graph).stages)
