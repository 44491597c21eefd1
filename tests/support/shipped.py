"""Schedule documents and optimized files of models, as `optimize` would have shipped them, without a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from iosched.jobs.annotate import annotated
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.teams import Teams

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


def optimized_file(
    path: Path, proto: onnx.ModelProto, shipped: str = "iosched", teams: Teams | None = None, way: str = "greedy"
) -> Path:
    """Writes `proto` with a schedule inside."""
    model = load_model(proto.SerializeToString())
    made = replace(document(model, way, shipped=shipped), teams=teams)
    write_model(annotated(model, made), model.weights, path)
    return path
