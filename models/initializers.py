"""Takes the weights out of a graph: read-only arrays, memory-mapped where the model keeps them in another file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.errors import DeviceError, InvalidModelError
from iosched.models.model import INLINE_NBYTES, WEIGHTS_LOCATION
from iosched.models.node_attributes import sparse_tensors, subgraphs, tensors
from iosched.models.wiring import nodes_within

_PACKED = frozenset(
    getattr(TensorProto, name)
    for name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
    if name in TensorProto.DataType.keys()  # noqa: SIM118, an enum wrapper and no mapping
)
_SPARSE_LIMIT_NBYTES = 2**31

_Maps = dict[str, np.ndarray]
"""The bytes of files of weights that were opened, by their locations."""


def read_weights(proto: onnx.ModelProto, source: Path | None) -> dict[str, np.ndarray]:
    """Every top-level initializer of a model by name, memory-mapped where it is external data.

    Sparse initializers become dense ones, and all other tensors hold their payload themselves afterwards. `source` is
    the model's path, beside which external data is looked up.

    Raises:
        InvalidModelError: a payload is missing, too short, of no known type, or outside the model's folder.
    """
    graph = proto.graph
    weights: dict[str, np.ndarray] = {}
    maps: _Maps = {}
    _take_in(proto, source, maps)
    _densify(graph)
    for tensor in graph.initializer:
        if tensor.name in weights:
            raise InvalidModelError(f"initializer {tensor.name!r} is defined twice.")
        weights[tensor.name] = _read(tensor, source, maps)
    return weights


def store_weights(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> None:
    """Make the initializers of `graph` those of `weights`, as `describe_weight` writes them, without large payloads."""
    del graph.initializer[:]
    graph.initializer.extend(describe_weight(name, array) for name, array in weights.items())


def describe_weight(name: str, array: np.ndarray) -> TensorProto:
    """An initializer for an array; it contains the payload of strings and of up to `INLINE_NBYTES`, and else none.

    It contains that of numbers of less than a byte, too: their bytes in an array are not those in a file.
    """
    if array.nbytes <= INLINE_NBYTES or array.dtype == object or is_packed(array.dtype):
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    tensor = TensorProto(name=name, dims=array.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=WEIGHTS_LOCATION)
    return tensor


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's payload is elsewhere: see `describe_weight`."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def is_packed(dtype: np.dtype) -> bool:
    """Whether ONNX puts several numbers of that type into a byte; in arrays each of them takes one."""
    return onnx.helper.np_dtype_to_tensor_dtype(dtype) in _PACKED


def read_tensor(tensor: TensorProto) -> np.ndarray:
    """A tensor with its payload inside, as a read-only array.

    Raises:
        InvalidModelError: the payload does not fit the tensor's type and dimensions.
    """
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"initializer {tensor.name!r} has a negative dimension: {list(tensor.dims)}.")
    if tensor.data_location == TensorProto.EXTERNAL:  # which onnx would look for in the working folder
        raise InvalidModelError(f"tensor {tensor.name!r} has external data.\nSave its data inside the model.")
    try:
        array: np.ndarray = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, UnicodeDecodeError, OverflowError) as error:
        raise InvalidModelError(f"initializer {tensor.name!r} is broken: {_line(error)}.") from error
    if tuple(array.shape) != tuple(tensor.dims):
        raise InvalidModelError(
            f"initializer {tensor.name!r} is broken: its data does not have shape {list(tensor.dims)}."
        )
    array.flags.writeable = False
    return array


def _read(tensor: TensorProto, source: Path | None, maps: _Maps) -> np.ndarray:
    if tensor.data_location == TensorProto.EXTERNAL:
        return _read_external(tensor, source, maps)
    return read_tensor(tensor)


def _read_external(tensor: TensorProto, source: Path | None, maps: _Maps) -> np.ndarray:
    """A view of the one memory map of the file; each map keeps a file open, and a process may open about a thousand."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    dtype, nbytes = _layout(tensor)
    offset, length = _number(tensor.name, fields, "offset", 0), _number(tensor.name, fields, "length", nbytes)
    if length != nbytes:
        raise InvalidModelError(f"weights of {tensor.name!r} have {length} bytes in {location!r}; they need {nbytes}.")
    if location not in maps:
        maps[location] = _mapped(tensor.name, location, source)
    content = maps[location]
    if offset + nbytes > content.nbytes:
        raise InvalidModelError(
            f"weights file {location!r} is too short: {tensor.name!r} needs bytes {offset} to {offset + nbytes} of "
            f"{content.nbytes}.\nDownload the weights file again, into the model's folder."
        )
    part = content[offset : offset + nbytes]
    if tensor.data_type in _PACKED:
        return read_tensor(_inside(tensor, part))
    return part.view(dtype).reshape(tuple(tensor.dims))


def _mapped(name: str, location: str, source: Path | None) -> np.ndarray:
    """All bytes of a file of weights, as they lie in the file: its size is looked at once, here."""
    with open_weights_file(name, location, source) as file:
        try:
            if os.fstat(file.fileno()).st_size == 0:
                return np.zeros(0, np.uint8)
            return np.memmap(file, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidModelError(f"weights file {location!r} cannot be read: {reason}.") from error


def _inside(tensor: TensorProto, content: np.ndarray) -> TensorProto:
    """The tensor with its payload inside it."""
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=content.tobytes())


def _take_in(proto: onnx.ModelProto, source: Path | None, maps: _Maps) -> None:
    """Puts the payload of all external data but that of top-level initializers into the messages themselves.

    onnx and onnxruntime would look for it beside the working folder, once the graph has no path any more.
    """
    for tensor in _tensors_within(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            content = _read_external(tensor, source, maps)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(content), tensor.name))


def _layout(tensor: TensorProto) -> tuple[np.dtype, int]:
    if tensor.data_type == TensorProto.STRING or any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"initializer {tensor.name!r} has a type or shape that external data does not support.")
    try:
        dtype = np.dtype(tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError as error:
        raise InvalidModelError(f"initializer {tensor.name!r} has an unknown type ({tensor.data_type}).") from error
    if tensor.data_type in _PACKED:
        per_byte = 4 if "2" in TensorProto.DataType.Name(tensor.data_type)[-2:] else 2
        per_byte = 2 if tensor.data_type == getattr(TensorProto, "FLOAT4E2M1", -1) else per_byte
        return dtype, -(-prod(tensor.dims) // per_byte)
    return dtype, prod(tensor.dims) * dtype.itemsize


def _number(name: str, fields: dict[str, str], key: str, default: int) -> int:
    text = fields.get(key) or str(default)
    if not text.isdecimal() or len(text) > 18:
        raise InvalidModelError(f"weights of {name!r}: {key} {text[:40]!r} is not a number of bytes.")
    return int(text)


def _tensors_within(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model but its graph's dense initializers: in nodes, in graphs inside them, and in functions."""
    sparse = list(proto.graph.sparse_initializer)
    for part in (proto.graph, *proto.functions):
        for node in nodes_within(part):
            yield from tensors(node)
            sparse.extend(sparse_tensors(node))
            for graph in subgraphs(node):
                yield from graph.initializer
                sparse.extend(graph.sparse_initializer)
    for each in sparse:
        yield from (each.values, each.indices)


def _densify(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        dims = tuple(sparse.dims)
        values, indices = read_tensor(sparse.values), read_tensor(sparse.indices)
        name = sparse.values.name
        if any(dim < 0 for dim in dims) or prod(dims) * values.itemsize > _SPARSE_LIMIT_NBYTES:
            raise InvalidModelError(
                f"sparse initializer {name!r} has shape {list(dims)}, which is negative or too large."
            )
        dense = np.zeros(dims, values.dtype)
        try:
            dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dims)] = values
        except (IndexError, ValueError) as error:
            raise InvalidModelError(f"sparse initializer {name!r} is broken: {_line(error)}.") from error
        graph.initializer.append(numpy_helper.from_array(dense, name))
    del graph.sparse_initializer[:]


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


_CAN_OPEN_BELOW = os.open in os.supports_dir_fd  # Windows cannot, and lacks the flags too
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _CAN_OPEN_BELOW else 0
# Without O_NONBLOCK, to open a named pipe would wait for somebody to write to it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _CAN_OPEN_BELOW else 0


def open_weights_file(name: str, location: str, source: Path | None) -> BinaryIO:
    """Opens a file of weights for reading.

    Links are resolved first, and may lead only to where the model itself lies. What is then opened is opened from that
    folder on, part by part and without following links: a link that somebody puts in place meanwhile leads nowhere.

    Args:
        name: of the weights, for messages.
        location: where the model says that they are, relative to its folder.
        source: the model's path; None where it came as bytes.

    Raises:
        InvalidModelError: the file is missing, no regular file, not in the model's folder, or cannot be read.
        DeviceError: this system cannot open files in this way.
    """
    if source is None:
        raise InvalidModelError(
            f"the weights of {name!r} are in another file ({location!r}), relative to the model's path.\n"
            "Pass the path of the model instead of its bytes."
        )
    if not _CAN_OPEN_BELOW:
        raise DeviceError(f"the weights of {name!r} are in another file, which needs Linux or macOS")
    path = source.parent / location
    try:
        home, inner = _place(name, location, source)
        return _opened(home, inner)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidModelError(
            f"weights file {path} is missing; it has {name!r}.\nPut it into the model's folder."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # the last for links in a circle
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModelError(f"weights file {path} cannot be read: {reason}.") from error


def _place(name: str, location: str, source: Path) -> tuple[Path, Path]:
    """The folder that a file of weights lies in, which is the model's, and its path below; no link is in either."""
    is_inside = location and not Path(location).is_absolute() and ".." not in Path(location).parts
    if is_inside and "\0" not in location:
        resolved = (source.parent / location).resolve()
        for home in (source.parent.resolve(), source.resolve().parent):
            if resolved.is_relative_to(home) and resolved != home:
                return home, resolved.relative_to(home)
    raise InvalidModelError(
        f"the weights of {name!r} point outside the model's folder: {location!r}.\n"
        "Put the weights file into the model's folder, and save the model with a relative location."
    )


def _opened(home: Path, inner: Path) -> BinaryIO:
    folder = os.open(home, _FOLDER)
    try:
        for part in inner.parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        file = os.open(inner.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):  # asked before `fdopen`, which leaves a folder open that it refuses
        os.close(file)
        raise FileNotFoundError(inner)
    return os.fdopen(file, "rb")
