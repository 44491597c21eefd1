"""Reads a `Model` from a file or bytes; an `UnboundModel` still has its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx

from iosched.models.checks import check_structure
from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError
from iosched.models.folding import fold_constants
from iosched.models.initializers import describe_weight, read_weights
from iosched.models.log import logger
from iosched.models.merging.merge import unmerge
from iosched.models.metadata import SCHEDULE_KEY, SCHEDULES_KEY, metadata_of
from iosched.models.model import Model
from iosched.models.normalize import (
    compute_weight_outputs,
    constants_to_weights,
    drop_copies,
    flatten_concats,
    inline_functions,
    name_nodes,
    squeeze_range_operands,
)
from iosched.models.operators import computation_graph
from iosched.models.shapes.binding import bind_inputs
from iosched.models.shapes.inference import forget_inferred, infer_again
from iosched.models.shapes.reshapes import check_reshapes, rebatch
from iosched.models.source import MIN_IR_VERSION, Source, as_path_or_bytes, describe, read_proto

_log = logger(__name__)

_Rewrite = Callable[[EditableGraph], None]
_NORMALIZATIONS: tuple[_Rewrite, ...] = (
    constants_to_weights, EditableGraph.sort, check_structure, unmerge, EditableGraph.sort, compute_weight_outputs,
    EditableGraph.drop_unread, drop_copies, EditableGraph.drop_unread,
)  # fmt: skip
"""Rewrites that normalize a graph, in order."""
_FOLDINGS: tuple[_Rewrite, ...] = (
    fold_constants, flatten_concats, squeeze_range_operands, EditableGraph.drop_unread, name_nodes, check_reshapes,
    infer_again,
)  # fmt: skip
"""Rewrites after binding, in order."""


def load_model(
    source: Source,
    *,
    name: str | None = None,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    """Read an ONNX model, bind its dynamic dimensions, and find its operators.

    Args:
        source: a path, with external data in the same folder; or bytes.
        name: the model's name; by default the file's stem or, for bytes, the graph's name.
        batch_size: the first dimension of every input; replaces a fixed one if the model allows it.
        input_shapes: shapes by input name, and one-element shapes by the name of a dynamic dimension.

    Raises:
        InvalidModelError: the file is not a runnable model, or a dynamic dimension stays unbound.
        UsageError: `batch_size` or `input_shapes` do not fit the model's inputs.
    """
    return read_unbound(source, name=name).bound(batch_size=batch_size, input_shapes=input_shapes)


def read_unbound(source: Source, *, name: str | None = None) -> UnboundModel:
    """Read an ONNX model and keep its dynamic dimensions; see `load_model`."""
    source = as_path_or_bytes(source)
    proto = read_proto(source)
    called = name or (source.stem if isinstance(source, Path) else proto.graph.name) or "model"
    with _naming_source(source):
        weights = read_weights(proto, source if isinstance(source, Path) else None)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(describe_weight(each, array) for each, array in weights.items())
        graph = _inlined_graph(proto, weights)
        _normalize(graph)
    return UnboundModel(called, graph.to_proto(), MappingProxyType(graph.weights), source)


@dataclass(frozen=True, eq=False)
class UnboundModel:
    """A model with its dynamic dimensions; the models bound from it share its weights.

    Attributes:
        name: file stem, or the graph's own name.
        proto: the normalized graph; large initializers have no payload.
        weights: every top-level initializer by name; read-only.
        original: the model's path or bytes.
    """

    name: str
    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    original: Path | bytes

    @property
    def schedules_json(self) -> str | None:
        """The model's schedules for several batch sizes, if any."""
        return metadata_of(self.proto, SCHEDULES_KEY)

    def bound(
        self, *, batch_size: int | None = None, input_shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> Model:
        """The model with bound dimensions; see `load_model`."""
        graph = EditableGraph.of(self.proto, self.weights)
        with _naming_source(self.original):
            model = _bound(self.name, graph, self.original, batch_size, input_shapes)
        shapes = ", ".join(f"{spec.name} {spec.dtype} {spec.shape}" for spec in model.graph.inputs)
        counts = len(model.graph.operators), len(model.proto.graph.node)
        _log.info(
            "read %s as %r: %d operators, %d nodes, inputs %s", describe(self.original), self.name, *counts, shapes
        )
        return model


@contextmanager
def _naming_source(source: Path | bytes) -> Iterator[None]:
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"{describe(source)}: {error}") from error


def assembled_model(name: str, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> Model:
    """The model of a graph in memory, whose inputs have static shapes, as if loaded from a file.

    `proto` is changed; its initializers are ignored in favour of `weights`.

    Raises:
        InvalidModelError: the graph cannot be run.
    """
    return edited_model(name, _inlined_graph(proto, weights))


def edited_model(name: str, graph: EditableGraph) -> Model:
    """The model of an edited graph, which must not be used afterwards; see `assembled_model`."""
    _normalize(graph)
    return _bound(name, graph, None)


def _bound(
    name: str,
    graph: EditableGraph,
    original: Path | bytes | None,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    binding = bind_inputs(graph.inputs.values(), batch_size, input_shapes)
    old = binding.replaced_batch
    forget_inferred(graph, binding.symbols, keep_shapes=old is None)
    if old is not None:
        rebatch(graph, old, next(shape[0] for shape in binding.shapes.values() if len(shape) >= 2))
    for rewrite in _FOLDINGS:
        rewrite(graph)
    proto = graph.to_proto()
    return Model(
        name=name,
        proto=proto,
        weights=MappingProxyType(graph.weights),
        graph=computation_graph(name, graph),
        original=original,
        bindings=MappingProxyType(dict(binding.shapes)),
        schedule_json=metadata_of(proto, SCHEDULES_KEY) or metadata_of(proto, SCHEDULE_KEY),
    )


def _inlined_graph(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> EditableGraph:
    proto.ir_version = max(proto.ir_version, MIN_IR_VERSION)
    proto.graph.name = proto.graph.name or "graph"
    inline_functions(proto)
    return EditableGraph.of(proto, weights, is_own=True)


def _normalize(graph: EditableGraph) -> None:
    for rewrite in _NORMALIZATIONS:
        rewrite(graph)
    if not graph.nodes:
        raise InvalidModelError("no output depends on a node: there is nothing to run.")
