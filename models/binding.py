"""Gives dynamic dimensions numbers, and changes a fixed batch size where the model allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import onnx

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.initializers import describe_weight
from iosched.models.node_attributes import integer
from iosched.models.shapes import infer_shapes, tensor_specs
from iosched.models.wiring import is_standard, reads, use_counts, writes

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
    tensors = {value.name: value for value in graph.input if value.type.WhichOneof("value") == "tensor_type"}
    _check_given(given, batch_size, [value.name for value in graph.input])
    shapes = {name: _dims(value) for name, value in tensors.items()}
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        if name in shapes:
            shapes[name] = _bind_shape(name, shapes[name], shape, symbols)
    _substitute(shapes, symbols)
    replaced = None if batch_size is None else _bind_batch(shapes, batch_size, symbols)
    _substitute(shapes, symbols)
    bound = _require_static(shapes)
    for name, value in tensors.items():
        _write_shape(value, bound[name])
    return Binding(bound, symbols, replaced)


def rebatch(proto: onnx.ModelProto, weights: dict[str, np.ndarray], old: int, new: int) -> None:
    """Change the batch size from `old` to `new` in place, in each Reshape of computed values that fixes it.

    A Reshape fixes the batch size where its target is a constant that begins with `old`.

    Raises:
        InvalidModelError: shapes contradict each other at the new batch size; the message names the node.
    """
    counts = use_counts(proto.graph)
    for node in _computed_reshapes(proto.graph):
        target = weights.get(node.input[1])
        if target is None or target.ndim != 1 or not target.size or target[0] != old:
            continue
        changed = np.concatenate([np.array([new], target.dtype), target[1:]])
        name = node.input[1]
        if counts[name] > 1:
            counts[name] -= 1
            name = node.input[1] = _fresh(f"{name}/batch{new}/{node.output[0]}", weights)
            proto.graph.initializer.append(describe_weight(name, changed))
        else:
            next(t for t in proto.graph.initializer if t.name == name).CopyFrom(describe_weight(name, changed))
        changed.flags.writeable = False
        weights[name] = changed
    try:
        infer_shapes(proto, strict=True)
    except InvalidModelError as error:
        raise InvalidModelError(
            f"the model cannot run at batch size {new}: a node fixes the batch at {old}.\n{error}\n"
            "Export the model with a dynamic batch dimension."
        ) from error


def check_reshapes(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> None:
    """Check that every Reshape keeps the number of elements. `graph` carries inferred shapes.

    Raises:
        InvalidModelError: one does not, for instance because it fixes the batch size; the message names the node.
    """
    specs = tensor_specs(graph)
    for node in _computed_reshapes(graph):
        target, data = weights.get(node.input[1]), specs.get(node.input[0])
        if target is None or data is None or data.shape is None or keeps_size(data.shape, target.tolist(), node):
            continue
        raise InvalidModelError(
            f"Reshape node {node.output[0]!r} turns {list(data.shape)} into {target.tolist()}: the sizes differ.\n"
            "It was exported for other input shapes; bind those, or export with dynamic dimensions."
        )


def keeps_size(shape: tuple[int, ...], target: list[int], node: onnx.NodeProto) -> bool:
    """Whether a Reshape of a tensor of `shape` to `target` keeps the number of elements."""
    if not integer(node, "allowzero"):
        if any(entry == 0 and axis >= len(shape) for axis, entry in enumerate(target)):
            return False
        target = [shape[axis] if entry == 0 else entry for axis, entry in enumerate(target)]
    size = int(np.prod(shape, dtype=object))
    rest = int(np.prod([entry for entry in target if entry != -1], dtype=object))
    return size == rest if -1 not in target else (size == 0 or (rest != 0 and size % rest == 0))


def _computed_reshapes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The Reshape nodes whose data depends on a graph input. The graph's nodes must stand in topological order."""
    computed = {value.name for value in graph.input}
    found = []
    for node in graph.node:
        if computed.isdisjoint(reads(node)):
            continue
        computed.update(writes(node))
        if node.op_type == "Reshape" and is_standard(node) and len(node.input) == 2:
            found.append(node)
    return [node for node in found if node.input[0] in computed]


def _check_given(given: Mapping[str, tuple[int, ...]], batch_size: int | None, inputs: list[str]) -> None:
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch size {batch_size} is not positive.")
    for name, shape in given.items():
        if name not in inputs:
            close = get_close_matches(name, inputs, n=3, cutoff=0.4) or inputs[:8]
            raise UsageError(f"the model has no input {name!r}; did you mean {', '.join(map(repr, close))}?")
        if any(dim < 0 for dim in shape):
            raise UsageError(f"shape {_text(shape)} of input {name!r} has a negative dimension.")


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


def _require_static(shapes: Mapping[str, Dims | None]) -> dict[str, tuple[int, ...]]:
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


def _write_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = value.type.tensor_type.shape
    del dims.dim[:]
    dims.SetInParent()
    for size in shape:
        dims.dim.add(dim_value=size)


def _text(dims: Dims | tuple[int, ...] | None) -> str:
    if dims is None:
        return "?"
    return "x".join("?" if isinstance(dim, str) and dim.startswith("?") else str(dim) for dim in dims) or "scalar"


def _listed(numbers: set[int]) -> str:
    return ", ".join(sorted(map(str, numbers)))


def _fresh(name: str, taken: Mapping[str, np.ndarray]) -> str:
    while name in taken:
        name += "_"
    return name
