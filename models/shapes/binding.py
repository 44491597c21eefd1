"""Binds dynamic dimensions to numbers, and replaces fixed batch sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import onnx

from iosched.models.errors import InvalidModelError, UsageError

Dims = list[int | str]
MAX_RANK = 32
"""The most dimensions of an array before numpy 2, which has 64."""

_NAMELESS = "?"
"""Prefix of unnamed dimensions. Some exporters name all unknown dimensions "?", which does not make them equal."""


@dataclass(frozen=True)
class BoundInputs:
    """The result of `bind_inputs`.

    Attributes:
        shapes: the static shape of every tensor input, by name.
        symbols: the number of each symbolic dimension.
        replaced_batch: the fixed batch size that was replaced; None if none was.
    """

    shapes: Mapping[str, tuple[int, ...]]
    symbols: Mapping[str, int]
    replaced_batch: int | None = None


def bind_inputs(
    inputs: Collection[onnx.ValueInfoProto],
    batch_size: int | None,
    input_shapes: Mapping[str, tuple[int, ...]] | None,
) -> BoundInputs:
    """Give every tensor input a static shape, in place.

    A symbol has one value everywhere. `input_shapes` has shapes by input name, and single sizes by symbol name.
    `batch_size` binds the first dimension of every input where that is dynamic, overriding `input_shapes`. If it is
    dynamic in none, and one fixed number in all inputs of rank 2 and more, that number is replaced.

    Raises:
        UsageError: a binding has an unknown name, is negative, or contradicts another one or a fixed dimension.
        InvalidModelError: a dimension stays unbound.
    """
    shapes = input_dims(inputs)
    given = dict(input_shapes or {})
    check_bindings(given, batch_size, [value.name for value in inputs], symbols_of(shapes))
    firsts = {dims[0] for dims in shapes.values() if dims and isinstance(dims[0], str)}
    if batch_size is not None:
        given = _at_batch(shapes, given, firsts, batch_size)
    symbols = bind_shapes(shapes, given)
    if batch_size is not None:
        symbols.update(dict.fromkeys(firsts, batch_size))
    _substitute(shapes, symbols)
    replaced = None if batch_size is None or firsts else _replace_batch(shapes, batch_size)
    bound = require_static(shapes)
    write_dims(inputs, bound)
    return BoundInputs(bound, symbols, replaced)


def check_bindings(
    given: Mapping[str, tuple[int, ...]], batch_size: int | None, inputs: Sequence[str], symbols: Sequence[str]
) -> None:
    """Reject unknown names, and invalid sizes.

    Raises:
        UsageError: naming the binding.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch size {batch_size} is not positive.")
    for name, shape in given.items():
        if name not in inputs and name not in symbols:
            known = [*inputs, *symbols]
            close = get_close_matches(name, known, n=3, cutoff=0.4) or known[:8]
            kinds = "input or dynamic dimension" if symbols else "input"
            raise UsageError(f"the model has no {kinds} {name!r}; did you mean {', '.join(map(repr, close))}?")
        if any(dim < 0 for dim in shape):
            raise UsageError(f"shape {_text(shape)} of input {name!r} has a negative dimension.")
        if name not in inputs and len(shape) != 1:
            raise UsageError(f"dimension {name!r} takes one size, not {_text(shape)}.")


def symbols_of(shapes: Mapping[str, Dims | None]) -> list[str]:
    """The names of dynamic dimensions, each once; unnamed ones are left out."""
    symbols = (dim for dims in shapes.values() for dim in dims or () if isinstance(dim, str))
    return list(dict.fromkeys(symbol for symbol in symbols if not symbol.startswith(_NAMELESS)))


def input_dims(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, Dims | None]:
    """The dimensions of every tensor input: numbers, symbols, or names starting with '?' for unnamed ones.

    None for inputs of unknown rank.

    Raises:
        InvalidModelError: an input has more dimensions than an array can have.
    """
    shapes = {value.name: _dims(value) for value in inputs if value.type.WhichOneof("value") == "tensor_type"}
    for name, dims in shapes.items():
        if dims is not None and len(dims) > MAX_RANK:
            raise InvalidModelError(f"input {name!r} has {len(dims):,} dimensions; at most {MAX_RANK} are supported.")
    return shapes


def bind_shapes(shapes: dict[str, Dims | None], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Substitute the sizes in `given`, in place; returns the number of each symbol.

    Raises:
        UsageError: a shape contradicts another one or a fixed dimension.
    """
    symbols = {name: shape[0] for name, shape in given.items() if name not in shapes and len(shape) == 1}
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
        named = dim.dim_param and not dim.dim_param.startswith(_NAMELESS)
        dims.append(dim.dim_value if known else dim.dim_param if named else f"{_NAMELESS}{value.name}:{axis}")
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
                "To change a fixed batch, use --batch-size."
            )
    return list(shape)


def _at_batch(
    shapes: Mapping[str, Dims | None], given: Mapping[str, tuple[int, ...]], firsts: Collection[str], batch: int
) -> dict[str, tuple[int, ...]]:
    """The shapes in `given` at this batch size; `firsts` are the symbols of first dimensions."""
    found: dict[str, tuple[int, ...]] = {}
    replaced: set[int] = set()
    for name, shape in given.items():
        dims = shapes.get(name, [name]) or []
        batched = [dim in firsts for dim in dims] if len(dims) == len(shape) else [False] * len(shape)
        replaced.update(size for size, is_batch in zip(shape, batched, strict=True) if is_batch)
        found[name] = tuple(batch if is_batch else size for size, is_batch in zip(shape, batched, strict=True))
    if len(replaced) > 1:
        raise UsageError(
            f"--batch-size {batch} conflicts with --input-shape, whose first dimensions are {_listed(replaced)}.\n"
            "Omit --batch-size."
        )
    return found


def _replace_batch(shapes: dict[str, Dims | None], batch: int) -> int | None:
    """Replace fixed first dimensions; returns the old one, or None if it is the same."""
    leading = {dims[0] for dims in shapes.values() if dims and len(dims) >= 2 and isinstance(dims[0], int)}
    if leading <= {batch}:
        return None
    if len(leading) > 1:
        raise UsageError(
            f"--batch-size {batch} does not apply: the inputs have different fixed batches ({_listed(leading)}).\n"
            "Use --input-shape NAME=1x3x224x224 for the dynamic inputs instead."
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
    """The shapes, all of whose dimensions must be numbers.

    Raises:
        InvalidModelError: one is not; says how to bind it.
    """
    unbound = {n: dims for n, dims in shapes.items() if dims is None or any(isinstance(dim, str) for dim in dims)}
    if unbound:
        listed = ", ".join(f"{name}={_text(dims)}" for name, dims in list(unbound.items())[:4])
        raise InvalidModelError(
            f"the model has dynamic dimensions: {listed}{', ...' if len(unbound) > 4 else ''}.\n{_hint(unbound)}"
        )
    return {name: tuple(int(dim) for dim in dims or ()) for name, dims in shapes.items()}


def _hint(unbound: Mapping[str, Dims | None]) -> str:
    options: list[str] = []
    bound: set[str] = set()
    for name, dims in unbound.items():
        fresh = {dim for dim in dims or () if isinstance(dim, str)} - bound
        bound |= fresh
        if fresh or dims is None:
            shape = "x".join(str(dim) if isinstance(dim, int) else "1" for dim in dims or (1, 3, 224, 224))
            options.append(f"--input-shape {name}={shape}")
    ways = [f"Bind them with {' '.join(options[:4])}{' ...' if len(options) > 4 else ''} (your sizes)"]
    firsts = {dims[0] for dims in unbound.values() if dims and isinstance(dims[0], str)}
    if others := [symbol for symbol in symbols_of(unbound) if symbol not in firsts]:
        ways.append(f"one symbol everywhere with --input-shape {others[0]}=1")
    if firsts or None in unbound.values():
        ways.append("the batch with --batch-size N")
    return ", or ".join(ways) + "."


def write_dims(inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Set the dimensions of every tensor input, in place: numbers, or names of symbols."""
    for value in inputs:
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
