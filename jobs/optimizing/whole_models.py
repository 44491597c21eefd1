"""Stores latencies of whole models with the sums of their stages.

Later jobs reuse them, and calibrate sums of stages on this device by them.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime

from iosched.jobs.optimizing.verdict import Verdict
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model
from iosched.profiler.devices.profiled_device import AttachedModel
from iosched.profiler.measuring.statistics import LEAST_SAMPLES
from iosched.profiler.store.tables import WholeRow
from iosched.scheduler.baselines import sequential
from iosched.scheduler.search import SearchResult


def whole_key(model: Model, settings: OptimizeSettings, attached: AttachedModel) -> str:
    """A digest of the model, shapes, search settings and library versions."""
    pruning = settings.pruning
    asked = [settings.strategy, pruning.r, pruning.s, settings.objective, attached.measuring.opened_with]
    key = json.dumps([model.digest, sorted(model.bindings.items()), asked, sorted(attached.measuring.versions.items())])
    return hashlib.sha256(key.encode()).hexdigest()


def keep_whole(
    model: Model,
    settings: OptimizeSettings,
    attached: AttachedModel,
    found: SearchResult,
    verdict: Verdict,
) -> None:
    """Stores the latency as shipped, if the whole model and all its stages were measured."""
    shipped, total_us = verdict.latencies.get(verdict.shipped), found.schedule.predicted_us
    if settings.schedule_from is not None or shipped is None or total_us is None or not math.isfinite(total_us):
        return
    if len(shipped.samples_us) < LEAST_SAMPLES or shipped.disturbed_by:
        return
    slowness = shipped.slowness or 1.0
    attached.cost.database.keep_whole(
        WholeRow(
            device=attached.cost.device,
            key=whole_key(model, settings, attached),
            measured_at=datetime.now(UTC),
            shipped=verdict.shipped,
            samples_us=shipped.samples_us,
            sequential_us=verdict.latencies["sequential"].samples_us,
            stages=len(tuple(found.schedule.stages)),
            sum_us=total_us * slowness,
            sequential_sum_us=operators_us(attached) * slowness,
        )
    )


def operators_us(attached: AttachedModel) -> float:
    """The sum of the latencies of single operators in microseconds.

    Measures nothing after a search that found a schedule with a latency, since searches measure single operators first.
    """
    return sum(map(attached.cost.stage_latency_us, sequential(attached.graph).stages))
