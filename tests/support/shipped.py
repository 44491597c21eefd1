"""A schedule document for a model, as `optimize` would have shipped it."""

from __future__ import annotations

from iosched.models.model import Model
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument

WAYS = {"sequential": sequential, "greedy": greedy}


def document(model: Model, way: str = "greedy", shipped: str = "iosched", **runtime: object) -> ScheduleDocument:
    return ScheduleDocument(
        model=model.name,
        sha256=model.digest,
        inputs=dict(model.bindings),
        dtype="float32",
        device={"kind": "cpu", "name": cpu_name()},
        schedule=WAYS[way](model.graph),
        shipped=shipped,
        latency_us={},
        versions={},
        runtime=dict(runtime),
    )
