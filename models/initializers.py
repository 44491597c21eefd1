"""Takes the weights out of a graph: read-only arrays, memory-mapped where the model keeps them in another file."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.errors import InvalidModelError
from iosched.models.model import INLINE_NBYTES, WEIGHTS_LOCATION

_PACKED = frozenset(
    getattr(TensorProto, name)
    for name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
    if name in TensorProto.DataType.keys()  # noqa: SIM118, an enum wrapper and no mapping
)
_SPARSE_LIMIT_NBYTES = 2**31


def take_weights(graph: onnx.GraphProto, source: Path | None) -> dict[str, np.ndarray]:
    """Move the payload of every top-level initializer out of `graph` and return it by name.

    Sparse initializers become dense ones. `source` is the model's path, beside which external data is looked up.

    Raises:
        InvalidModelError: a payload is missing, too short, of no known type, or outside the model's folder.
    """
    _densify(graph)
    weights: dict[str, np.ndarray] = {}
    maps: dict[Path, np.memmap] = {}
    for tensor in graph.initializer:
        if tensor.name in weights:
            raise InvalidModelError(f"initializer {tensor.name!r} is defined twice.")
        weights[tensor.name] = _read(tensor, source, maps)
    store_weights(graph, weights)
    return weights


def store_weights(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> None:
    """Make the initializers of `graph` those of `weights`, as `describe_weight` writes them."""
    del graph.initializer[:]
    graph.initializer.extend(describe_weight(name, array) for name, array in weights.items())


def describe_weight(name: str, array: np.ndarray) -> TensorProto:
    """An initializer for an array; it contains the payload of strings and of up to `INLINE_NBYTES`, and else none."""
    if array.nbytes <= INLINE_NBYTES or array.dtype == object:
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    tensor = TensorProto(name=name, dims=array.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=WEIGHTS_LOCATION)
    return tensor


def read_tensor(tensor: TensorProto) -> np.ndarray:
    """A tensor with its payload inside, as a read-only array.

    Raises:
        InvalidModelError: the payload does not fit the tensor's type and dimensions.
    """
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"initializer {tensor.name!r} has a negative dimension: {list(tensor.dims)}.")
    try:
        array: np.ndarray = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, UnicodeDecodeError, OverflowError) as error:
        raise InvalidModelError(f"initializer {tensor.name!r} is broken: {_line(error)}.") from error
    if tuple(array.shape) != tuple(tensor.dims):
        raise InvalidModelError(f"initializer {tensor.name!r} is broken: its data is not of shape {list(tensor.dims)}.")
    array.flags.writeable = False
    return array


def _read(tensor: TensorProto, source: Path | None, maps: dict[Path, np.memmap]) -> np.ndarray:
    if tensor.data_location == TensorProto.EXTERNAL:
        return _read_external(tensor, source, maps)
    return read_tensor(tensor)


def _read_external(tensor: TensorProto, source: Path | None, maps: dict[Path, np.memmap]) -> np.ndarray:
    """A view of the one memory map of the file; each map keeps a file open, and a process may open about a thousand."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    path = _external_path(tensor.name, fields.get("location", ""), source)
    dtype, nbytes = _layout(tensor)
    offset, length = _number(tensor.name, fields, "offset", 0), _number(tensor.name, fields, "length", nbytes)
    if length != nbytes:
        raise InvalidModelError(f"weights of {tensor.name!r}: {length} bytes in {path.name}, {nbytes} are needed.")
    try:
        available = path.stat().st_size
        if offset + nbytes > available:
            raise InvalidModelError(
                f"{path} is too short: {tensor.name!r} needs bytes {offset} to {offset + nbytes} of {available}.\n"
                "Fetch the weights file again; it belongs beside the model."
            )
        if nbytes == 0:
            return np.zeros(tuple(tensor.dims), dtype)
        if tensor.data_type in _PACKED:
            return _unpack(tensor, path, offset, nbytes)
        if path not in maps:
            maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        return maps[path][offset : offset + nbytes].view(dtype).reshape(tuple(tensor.dims))
    except OSError as error:
        raise InvalidModelError(f"weights file {path} cannot be read: {error.strerror or error}.") from error


def _external_path(name: str, location: str, source: Path | None) -> Path:
    if source is None:
        raise InvalidModelError(
            f"the weights of {name!r} are in another file ({location!r}), and the model came without a folder.\n"
            "Give the model's path instead of its bytes."
        )
    path = source.parent / location
    homes = (source.parent.resolve(), source.resolve().parent)
    resolved = path.resolve()
    outside = not location or Path(location).is_absolute() or ".." in Path(location).parts or "\0" in location
    if outside or not any(resolved.is_relative_to(home) for home in homes):
        raise InvalidModelError(
            f"the weights of {name!r} point outside the model's folder: {location!r}.\n"
            "Put the weights file beside the model and save the model with a relative location."
        )
    if not path.is_file():
        raise InvalidModelError(f"weights file {path} is missing ({name!r} is in it).\nPut it beside the model.")
    return path


def _layout(tensor: TensorProto) -> tuple[np.dtype, int]:
    if tensor.data_type == TensorProto.STRING or any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"initializer {tensor.name!r} cannot be external data: bad type or shape.")
    try:
        dtype = np.dtype(tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError as error:
        raise InvalidModelError(f"initializer {tensor.name!r} is of no known type ({tensor.data_type}).") from error
    if tensor.data_type in _PACKED:
        per_byte = 4 if "2" in TensorProto.DataType.Name(tensor.data_type)[-2:] else 2
        per_byte = 2 if tensor.data_type == getattr(TensorProto, "FLOAT4E2M1", -1) else per_byte
        return dtype, -(-prod(tensor.dims) // per_byte)
    return dtype, prod(tensor.dims) * dtype.itemsize


def _number(name: str, fields: dict[str, str], key: str, default: int) -> int:
    text = fields.get(key) or str(default)
    if not text.isdecimal() or len(text) > 18:
        raise InvalidModelError(f"weights of {name!r}: {key} {text[:40]!r} is no size in bytes.")
    return int(text)


def _unpack(tensor: TensorProto, path: Path, offset: int, nbytes: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(offset)
        inside = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=file.read(nbytes))
    return read_tensor(inside)


def _densify(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        dims = tuple(sparse.dims)
        values, indices = read_tensor(sparse.values), read_tensor(sparse.indices)
        name = sparse.values.name
        if any(dim < 0 for dim in dims) or prod(dims) * values.itemsize > _SPARSE_LIMIT_NBYTES:
            raise InvalidModelError(f"sparse initializer {name!r} has shape {list(dims)}, which cannot be held.")
        dense = np.zeros(dims, values.dtype)
        try:
            dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dims)] = values
        except (IndexError, ValueError) as error:
            raise InvalidModelError(f"sparse initializer {name!r} is broken: {_line(error)}.") from error
        graph.initializer.append(numpy_helper.from_array(dense, name))
    del graph.sparse_initializer[:]


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
