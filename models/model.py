"""A loaded model: the working ONNX graph, its weights beside it, and the computation graph made of both."""

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
"""External-data location of initializers whose payload lives in `Model.weights`."""

INLINE_NBYTES = 1024
"""Initializers up to this size keep their payload in the proto, where shape inference reads them."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model that is ready to be scheduled: shapes bound, constants folded, operators found.

    Attributes:
        name: file stem, or the graph's own name.
        proto: the working graph. Every node's `name` is its first non-empty output, `graph.input` holds no weights,
            and initializers above `INLINE_NBYTES` carry no payload (external data at `WEIGHTS_LOCATION`).
        weights: every top-level initializer by name; read-only, and memory-mapped where the file keeps it outside.
        graph: the schedule units and the tensors between them.
        original: the path or the bytes that the model was loaded from; None where it was put together here.
        bindings: the bound shape of every tensor input.
        schedule_json: the schedule that the model carries, if any, or its schedules for several batch sizes.
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
        """Operations in one run; a multiply and an add count as two."""
        return sum(operator.flops for operator in self.graph.operators)

    @property
    def n_parameters(self) -> int:
        """How many numbers the weights have."""
        return sum(array.size for array in self.weights.values())

    @cached_property
    def weight_digests(self) -> Mapping[str, str]:
        """`array_digest` of each weight by its name; each is computed at its first use."""
        return WeightDigests(self.weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over graph and weights; computed at the first use.

        It is the same for a model and for its annotated form. `structure` has a digest of its own, which does not
        depend on weights and names.
        """
        return model_digest(self.proto, self.weight_digests, self.graph)

    @cached_property
    def structure(self) -> Structure:
        """All of the model that a schedule depends on; computed at the first use."""
        return structure_of(self.proto, self.weights, self.graph)
