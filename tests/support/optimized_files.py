"""Optimized models as files, without a search: by the greedy schedule, or as if something else had been shipped."""

from __future__ import annotations

from pathlib import Path

import onnx
from shipped import document

from iosched.jobs.annotate import annotated
from iosched.models.export import write_model
from iosched.models.load import load_model


def optimized_file(path: Path, proto: onnx.ModelProto, shipped: str = "iosched") -> Path:
    """Writes `proto` with a schedule inside."""
    model = load_model(proto.SerializeToString())
    write_model(annotated(model, document(model, shipped=shipped)), model.weights, path)
    return path
