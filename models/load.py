"""Reads a `Model` from a file or from bytes, step by step; between two of them, its dynamic dimensions are open."""

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
from iosched.models.initializers import read_weights, store_weights
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
from iosched.models.source import MIN_IR_VERSION, Source, describe, located, read_proto

_log = logger(__name__)

_Rewrite = Callable[[EditableGraph], None]
_NORMALIZATIONS: tuple[_Rewrite, ...] = (
    constants_to_weights, EditableGraph.sort, check_structure, unmerge, EditableGraph.sort, compute_weight_outputs,
    EditableGraph.drop_unread, drop_copies, EditableGraph.drop_unread,
)  # fmt: skip
"""The rewrites that bring a graph into one form, in order."""
_FOLDINGS: tuple[_Rewrite, ...] = (
    fold_constants, flatten_concats, squeeze_range_operands, EditableGraph.drop_unread, name_nodes, check_reshapes,
    infer_again,
)  # fmt: skip
"""The rewrites that follow once the shapes of inputs are known, in order."""


def load_model(
    source: Source,
    *,
    name: str | None = None,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    """Read an ONNX model, bind its dynamic dimensions, and find its operators.

    Args:
        source: the path of a model, beside which its external data lies; or the bytes of one.
        name: the model's name; by default the file's stem or, for bytes, the graph's name.
        batch_size: the first dimension of every input; replaces a fixed one where the model allows it.
        input_shapes: full shapes by the names of inputs, and shapes of one size by those of dynamic dimensions.

    Raises:
        InvalidModelError: the file is no model that can be run, or a dynamic dimension stays unbound.
        UsageError: `batch_size` or `input_shapes` do not fit the model's inputs.
    """
    return read_unbound(source, name=name).bound(batch_size=batch_size, input_shapes=input_shapes)


def read_unbound(source: Source, *, name: str | None = None) -> UnboundModel:
    """Read an ONNX model and leave its dynamic dimensions open.

    Args:
        source: the path of a model, beside which its external data lies; or the bytes of one.
        name: the model's name; by default the file's stem or, for bytes, the graph's name.

    Raises:
        InvalidModelError: the file is no model that can be run.
    """
    source = located(source)
    proto = read_proto(source)
    called = name or (source.stem if isinstance(source, Path) else proto.graph.name) or "model"
    with _telling_where(source):
        weights = read_weights(proto, source if isinstance(source, Path) else None)
        store_weights(proto.graph, weights)
        graph = _graph_of(proto, weights)
        _normalize(graph)
    return UnboundModel(called, graph.to_proto(), MappingProxyType(graph.weights), source)


@dataclass(frozen=True, eq=False)
class UnboundModel:
    """A model whose dynamic dimensions are still open; all models that are bound from it have its weights in common.

    Attributes:
        name: file stem, or the graph's own name.
        proto: the graph in the one form that all models are brought into; large initializers carry no payload.
        weights: every top-level initializer by name; read-only.
        original: the path or the bytes that the model was loaded from.
    """

    name: str
    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    original: Path | bytes

    @property
    def schedules_json(self) -> str | None:
        """The schedules for several batch sizes that the model carries, if any."""
        return metadata_of(self.proto, SCHEDULES_KEY)

    def bound(
        self, *, batch_size: int | None = None, input_shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> Model:
        """The model with its dynamic dimensions bound; see `load_model`.

        Raises:
            InvalidModelError: a dynamic dimension stays unbound, or shapes contradict each other.
            UsageError: `batch_size` or `input_shapes` do not fit the model's inputs.
        """
        graph = EditableGraph.of(self.proto, self.weights)
        with _telling_where(self.original):
            model = _bound(self.name, graph, self.original, batch_size, input_shapes)
        shapes = ", ".join(f"{spec.name} {spec.dtype} {spec.shape}" for spec in model.graph.inputs)
        counts = len(model.graph.operators), len(model.proto.graph.node)
        _log.info(
            "read %s as %r: %d operators, %d nodes, inputs %s", describe(self.original), self.name, *counts, shapes
        )
        return model


@contextmanager
def _telling_where(source: Path | bytes) -> Iterator[None]:
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"{describe(source)}: {error}") from error


def assembled_model(name: str, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> Model:
    """The model of a graph that was made here, not read from a file: what loading the written file would give.

    Args:
        name: the model's name.
        proto: the graph, all of whose inputs have static shapes; it is changed.
        weights: every initializer by name. Those of the graph itself are not looked at.

    Raises:
        InvalidModelError: the graph is not one that can be run.
    """
    return edited_model(name, _graph_of(proto, weights))


def edited_model(name: str, graph: EditableGraph) -> Model:
    """The model of a loaded graph that was edited, which must not be used any more; see `assembled_model`."""
    _normalize(graph)
    return _bound(name, graph, None)


def _bound(
    name: str,
    graph: EditableGraph,
    original: Path | bytes | None,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    """The model of a graph in one form, with its inputs bound; see `load_model`."""
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


def _graph_of(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> EditableGraph:
    """The graph without functions; `proto` is changed."""
    proto.ir_version = max(proto.ir_version, MIN_IR_VERSION)
    proto.graph.name = proto.graph.name or "graph"
    inline_functions(proto)
    return EditableGraph.of(proto, weights, is_own=True)


def _normalize(graph: EditableGraph) -> None:
    """Bring the graph into one form, whatever tool wrote it.

    It has no Constant nodes and no merged operators, its nodes stand in topological order, and it has passed the
    checks.
    """
    for rewrite in _NORMALIZATIONS:
        rewrite(graph)
    if not graph.nodes:
        raise InvalidModelError("no output depends on a node: there is nothing to run.")
