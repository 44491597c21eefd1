"""A loaded model: the working ONNX graph, its weights, and its computation graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from iosched.models.canonical import structure_of
from iosched.models.digest import WeightDigests, model_digest
from iosched.models.graph import ComputationGraph
from iosched.models.structure import Structure

WEIGHTS_LOCATION = "weights"
"""External-data location of initializers whose payload is in `Model.weights`."""

INLINE_NBYTES = 1024
"""Initializers up to this size keep their payload in the proto, for shape inference."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model that is ready to be scheduled: shapes bound, constants folded, operators found.

    Attributes:
        name: file stem, or the graph's own name.
        proto: the working graph. A node's `name` is its first non-empty output, `graph.input` has no weights, and
            initializers above `INLINE_NBYTES` have no payload (external data at `WEIGHTS_LOCATION`).
        weights: every top-level initializer by name; read-only, memory-mapped if external in the file.
        graph: the operators and the tensors between them.
        original: the model's path or bytes; None if assembled in memory.
        bindings: the bound shape of every tensor input.
        schedule_json: the schedule in the model's metadata, if any, or its schedules for several batch sizes.
    """

    name: str
    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    graph: ComputationGraph
    original: Path | bytes | None
    bindings: Mapping[str, tuple[int, ...]]
    schedule_json: str | None = None

    @property
    def batch_size(self) -> int:
        """First dimension of the first input that has one, else 1."""
        return next((spec.shape[0] for spec in self.graph.inputs if spec.shape), 1)

    @property
    def flops(self) -> int:
        """Operations in one run; multiply and add counted as two."""
        return sum(operator.flops for operator in self.graph.operators)

    @property
    def n_parameters(self) -> int:
        """The number of weight elements."""
        return sum(array.size for array in self.weights.values())

    @cached_property
    def weight_digests(self) -> Mapping[str, str]:
        """`array_digest` of each weight by name; computed on first use."""
        return WeightDigests(self.weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of graph and weights; the same for a model and its annotated form."""
        return model_digest(self.proto, self.weight_digests, self.graph)

    @cached_property
    def structure(self) -> Structure:
        """Everything that a schedule depends on: no weights, no names."""
        return structure_of(self.proto, self.weights, self.graph)
