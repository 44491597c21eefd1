"""Models whose batch is their only dynamic dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx

from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.graph import BatchShape, DynamicBatchSpec, at_batch
from iosched.models.load import UnboundModel
from iosched.models.model import Model
from iosched.models.shapes.binding import (
    Dims,
    bind_shapes,
    check_bindings,
    input_dims,
    require_static,
    symbols_of,
    write_dims,
)
from iosched.models.shapes.inference import dtype_of, forget_inferred, infer, tensor_specs
from iosched.models.shapes.reshapes import free_batch

_BATCH = "batch"


@dataclass(frozen=True, eq=False)
class DynamicBatchModel:
    """A model whose only dynamic dimension is the batch; models at all batch sizes share its weights.

    Attributes:
        unbound: the model; no Reshape in it fixes the batch.
        inputs: the shape of every tensor input, with a text for the batch size.
    """

    unbound: UnboundModel
    inputs: Mapping[str, BatchShape]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.unbound.name

    def at(self, batch_size: int) -> Model:
        """The model at one batch size; raises `InvalidModelError` if shapes contradict each other there."""
        try:
            return self.unbound.bound(input_shapes=at_batch(self.inputs, batch_size))
        except InvalidModelError as error:
            raise InvalidModelError(
                f"the model cannot run at batch size {batch_size}; a node may fix the batch.\n{error}"
            ) from error

    def proto(self, batch_sizes: Sequence[int]) -> onnx.ModelProto:
        """The model to write: the batch is a symbol, all other input dimensions are numbers.

        Shapes that cannot be inferred are derived from those at two of `batch_sizes`.
        """
        graph = EditableGraph.of(self.unbound.proto, self.unbound.weights)
        numbers = _numbers(input_dims(graph.inputs.values()), self.inputs)
        write_dims(graph.inputs.values(), self.inputs)
        forget_inferred(graph, numbers, keep_shapes=True)
        infer(graph)
        proto = graph.to_proto()
        symbol = next(dim for shape in self.inputs.values() for dim in shape if isinstance(dim, str))
        values = [
            value for value in (*proto.graph.value_info, *proto.graph.output) if _has_unknown_sizes(value, symbol)
        ]
        if values:
            sizes = batch_sizes[0], batch_sizes[-1]
            one, other = (tensor_specs(self.at(size).proto.graph) for size in sizes)
            for value in values:
                if value.name in one and value.name in other:
                    _write_shape(value, symbol, sizes, (one[value.name].shape, other[value.name].shape))
        return proto


def declared(values: Iterable[onnx.ValueInfoProto]) -> tuple[DynamicBatchSpec, ...]:
    """The specs of inputs or outputs of a model from `DynamicBatchModel.proto`."""
    return tuple(DynamicBatchSpec(value.name, dtype_of(value.type), _batch_shape(value.type)) for value in values)


def _batch_shape(kind: onnx.TypeProto) -> BatchShape | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.tensor_type.shape.dim]
    return None if "" in dims else tuple(dims)


def _has_unknown_sizes(value: onnx.ValueInfoProto, symbol: str) -> bool:
    if value.type.WhichOneof("value") != "tensor_type":
        return False
    shape = value.type.tensor_type.shape
    known = all(dim.HasField("dim_value") or dim.dim_param == symbol for dim in shape.dim)
    return not (known and value.type.tensor_type.HasField("shape"))


def _write_shape(
    value: onnx.ValueInfoProto,
    symbol: str,
    sizes: tuple[int, int],
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None],
) -> None:
    """Write the shape of a tensor from its shapes at two batch sizes; other differences stay open."""
    one, other = shapes
    if one is None or other is None or len(one) != len(other):
        return
    dims = value.type.tensor_type.shape
    del dims.dim[:]
    dims.SetInParent()
    for pair in zip(one, other, strict=True):
        dim = dims.dim.add()
        if pair == sizes:
            dim.dim_param = symbol
        elif pair[0] == pair[1]:
            dim.dim_value = pair[0]


def with_dynamic_batch(
    unbound: UnboundModel, batch_sizes: Sequence[int], input_shapes: Mapping[str, tuple[int, ...]] | None = None
) -> DynamicBatchModel:
    """The model with a dynamic batch and all other dynamic dimensions bound.

    The batch is the dynamic first dimension of inputs. In `input_shapes`, which are shapes at one of the batch sizes,
    an input whose first dimension is another number has no batch. Without dynamic dimensions, the fixed batch of all
    inputs of rank 2 and more becomes dynamic if the model allows it.

    Raises:
        UsageError: a shape does not fit the inputs, or they have no batch.
        InvalidModelError: a dimension stays unbound.
    """
    given = dict(input_shapes or {})
    dims = input_dims(unbound.proto.graph.input)
    check_bindings(given, None, [value.name for value in unbound.proto.graph.input], symbols_of(dims))
    dims = _with_ranks(dims, given)
    bind_shapes({name: None if own is None else [*own] for name, own in dims.items()}, given)
    if all(isinstance(dim, int) for own in dims.values() for dim in own or ("?",)):
        return _with_freed_batch(unbound, {name: tuple(own or ()) for name, own in dims.items()})
    symbols = _symbols(dims, given, batch_sizes)
    batch = next((name for name in symbols if symbols[name] is None), "")
    batch = _BATCH if not batch or batch.startswith("?") else batch
    shapes = {name: None if own is None else [_bound(dim, symbols, batch) for dim in own] for name, own in dims.items()}
    if not any(dim == batch for own in shapes.values() for dim in own or ()):
        raise UsageError("the model has no dynamic batch: no input has a dynamic first dimension.")
    require_static(
        {n: None if own is None else [1 if dim == batch else dim for dim in own] for n, own in shapes.items()}
    )
    return DynamicBatchModel(unbound, MappingProxyType({name: tuple(own or ()) for name, own in shapes.items()}))


def _with_ranks(dims: dict[str, Dims | None], given: Mapping[str, tuple[int, ...]]) -> dict[str, Dims | None]:
    unknown: dict[str, Dims | None] = {
        name: [f"?{name}:0", *given[name][1:]] for name, own in dims.items() if own is None and given.get(name)
    }
    return {**dims, **unknown}


def _symbols(
    dims: Mapping[str, Dims | None], given: Mapping[str, tuple[int, ...]], batch_sizes: Sequence[int]
) -> dict[str, int | None]:
    """The number of each symbol; None for the batch."""
    example = next((shape[0] for name, shape in given.items() if _first(dims.get(name)) and shape), None)
    if example is not None and example not in batch_sizes:
        listed = ", ".join(map(str, batch_sizes))
        raise UsageError(
            f"--input-shape has batch size {example}, which is none of {listed}.\n"
            "Pass shapes at one of these batch sizes."
        )
    found: dict[str, int | None] = {name: shape[0] for name, shape in given.items() if name not in dims}
    for name, shape in given.items():
        for axis, (dim, size) in enumerate(zip(dims.get(name) or (), shape, strict=False)):
            if isinstance(dim, str):
                found.setdefault(dim, None if axis == 0 and size == example else size)
    for own in dims.values():
        if first := _first(own):
            found.setdefault(first, None)
    return found


def _first(dims: Dims | None) -> str | None:
    return dims[0] if dims and isinstance(dims[0], str) else None


def _bound(dim: int | str, symbols: Mapping[str, int | None], batch: str) -> int | str:
    if isinstance(dim, int) or dim not in symbols:
        return dim
    size = symbols[dim]
    return batch if size is None else size


def _numbers(dims: Mapping[str, Dims | None], bound: Mapping[str, BatchShape]) -> dict[str, int]:
    pairs = ((a, b) for name, own in dims.items() for a, b in zip(own or (), bound[name], strict=False))
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str) and isinstance(size, int)}


def _with_freed_batch(unbound: UnboundModel, shapes: Mapping[str, BatchShape]) -> DynamicBatchModel:
    leading = {shape[0] for shape in shapes.values() if len(shape) >= 2}
    if len(leading) != 1:
        what = "no input has two dimensions" if not leading else "the inputs have different fixed batches"
        raise UsageError(f"the model has no batch: {what}.\nExport it with a dynamic batch dimension.")
    old = int(next(iter(leading)))
    graph = EditableGraph.of(unbound.proto, unbound.weights)
    forget_inferred(graph, {}, keep_shapes=True)
    free_batch(graph, old)
    inputs = {name: (_BATCH, *shape[1:]) if len(shape) >= 2 else shape for name, shape in shapes.items()}
    write_dims(graph.inputs.values(), inputs)
    forget_inferred(graph, {}, keep_shapes=False)
    freed = replace(unbound, proto=graph.to_proto(), weights=MappingProxyType(graph.weights))
    return DynamicBatchModel(freed, MappingProxyType(inputs))
