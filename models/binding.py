"""Gives dynamic dimensions numbers, and a fixed batch another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import onnx

from iosched.models.errors import InvalidModelError, UsageError

Dims = list[int | str]


@dataclass(frozen=True)
class Binding:
    """What `bind_inputs` decided.

    Attributes:
        shapes: the static shape of every tensor input, by name.
        symbols: the number that each symbolic dimension got.
        replaced_batch: the fixed batch size that was replaced by another; None where none was.
    """

    shapes: Mapping[str, tuple[int, ...]]
    symbols: Mapping[str, int]
    replaced_batch: int | None = None


def bind_inputs(
    graph: onnx.GraphProto, batch_size: int | None, input_shapes: Mapping[str, tuple[int, ...]] | None
) -> Binding:
    """Give every tensor input of `graph` a static shape, in place.

    A symbol has one value wherever it stands. `batch_size` binds the first dimension of every input; where that is a
    fixed number on all inputs of rank 2 and more, it is replaced.

    Raises:
        UsageError: a binding names no input, is negative, or contradicts another one or a fixed dimension.
        InvalidModelError: a dimension stays unbound.
    """
    given = dict(input_shapes or {})
    check_given(given, batch_size, [value.name for value in graph.input])
    shapes = input_dims(graph)
    symbols = bind_shapes(shapes, given)
    _substitute(shapes, symbols)
    replaced = None if batch_size is None else _bind_batch(shapes, batch_size, symbols)
    _substitute(shapes, symbols)
    bound = require_static(shapes)
    write_dims(graph, bound)
    return Binding(bound, symbols, replaced)


def check_given(given: Mapping[str, tuple[int, ...]], batch_size: int | None, inputs: list[str]) -> None:
    """Refuses shapes of inputs that are not there, and sizes that no dimension can have.

    Raises:
        UsageError: says which.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch size {batch_size} is not positive.")
    for name, shape in given.items():
        if name not in inputs:
            close = get_close_matches(name, inputs, n=3, cutoff=0.4) or inputs[:8]
            raise UsageError(f"the model has no input {name!r}; did you mean {', '.join(map(repr, close))}?")
        if any(dim < 0 for dim in shape):
            raise UsageError(f"shape {_text(shape)} of input {name!r} has a negative dimension.")


def input_dims(graph: onnx.GraphProto) -> dict[str, Dims | None]:
    """The dimensions of every tensor input: a number, the name of a symbol, or a name that begins with '?' for none.

    None stands for an input of which not even the rank is known.
    """
    return {value.name: _dims(value) for value in graph.input if value.type.WhichOneof("value") == "tensor_type"}


def bind_shapes(shapes: dict[str, Dims | None], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Puts the sizes given in place of the dimensions of these inputs; returns the number that each symbol got.

    Raises:
        UsageError: a shape contradicts another one or a fixed dimension.
    """
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        if name in shapes:
            shapes[name] = _bind_shape(name, shapes[name], shape, symbols)
    return symbols


def _dims(value: onnx.ValueInfoProto) -> Dims | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: Dims = []
    for axis, dim in enumerate(tensor.shape.dim):
        known = dim.HasField("dim_value") and dim.dim_value >= 0
        dims.append(dim.dim_value if known else dim.dim_param or f"?{value.name}:{axis}")
    return dims


def _bind_shape(name: str, dims: Dims | None, shape: tuple[int, ...], symbols: dict[str, int]) -> Dims:
    if dims is None:
        return list(shape)
    if len(dims) != len(shape):
        raise UsageError(f"input {name!r} has {len(dims)} dimensions ({_text(dims)}), not {len(shape)}.")
    for dim, size in zip(dims, shape, strict=True):
        fixed = symbols.setdefault(dim, size) if isinstance(dim, str) else dim
        if fixed != size:
            what = f"dimension {dim!r} is bound to {fixed}" if isinstance(dim, str) else f"dimension {fixed} is fixed"
            raise UsageError(
                f"input {name!r} cannot have shape {_text(shape)}: its {what} (model: {_text(dims)}).\n"
                "A fixed batch is changed with --batch-size."
            )
    return list(shape)


def _bind_batch(shapes: dict[str, Dims | None], batch: int, symbols: dict[str, int]) -> int | None:
    firsts = {name: dims[0] for name, dims in shapes.items() if dims}
    for first in firsts.values():
        if isinstance(first, str):
            symbols[first] = batch
    leading = {dims[0] for dims in shapes.values() if dims and len(dims) >= 2 and isinstance(dims[0], int)}
    if leading <= {batch}:
        return None
    if len(leading) > 1:
        raise UsageError(
            f"--batch-size {batch} does not fit: the inputs' first dimensions are fixed at {_listed(leading)}.\n"
            "Give the shapes of the dynamic inputs with --input-shape NAME=1x3x224x224 instead."
        )
    for dims in shapes.values():
        if dims and len(dims) >= 2 and isinstance(dims[0], int):
            dims[0] = batch
    return int(next(iter(leading)))


def _substitute(shapes: dict[str, Dims | None], symbols: Mapping[str, int]) -> None:
    for dims in shapes.values():
        for axis, dim in enumerate(dims or ()):
            if dims is not None and isinstance(dim, str):
                dims[axis] = symbols.get(dim, dim)


def require_static(shapes: Mapping[str, Dims | None]) -> dict[str, tuple[int, ...]]:
    """The shapes, all of whose dimensions have to be numbers.

    Raises:
        InvalidModelError: one is not; says how to bind it.
    """
    unbound = {n: dims for n, dims in shapes.items() if dims is None or any(isinstance(dim, str) for dim in dims)}
    if unbound:
        listed = ", ".join(f"{name}={_text(dims)}" for name, dims in list(unbound.items())[:4])
        name, dims = next(iter(unbound.items()))
        shape = "x".join(str(dim) if isinstance(dim, int) else "1" for dim in dims or (1, 3, 224, 224))
        raise InvalidModelError(
            f"the model has dynamic dimensions: {listed}{', ...' if len(unbound) > 4 else ''}.\n"
            f"Bind them with --input-shape {name}={shape} (your sizes), or the first one with --batch-size N."
        )
    return {name: tuple(int(dim) for dim in dims or ()) for name, dims in shapes.items()}


def write_dims(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Give every tensor input these dimensions, in place: numbers, or the names of symbols."""
    for value in graph.input:
        if value.name not in shapes:
            continue
        dims = value.type.tensor_type.shape
        del dims.dim[:]
        dims.SetInParent()
        for size in shapes[value.name]:
            dims.dim.add(dim_param=size) if isinstance(size, str) else dims.dim.add(dim_value=size)


def _text(dims: Dims | tuple[int, ...] | None) -> str:
    if dims is None:
        return "?"
    return "x".join("?" if isinstance(dim, str) and dim.startswith("?") else str(dim) for dim in dims) or "scalar"


def _listed(numbers: set[int]) -> str:
    return ", ".join(sorted(map(str, numbers)))
