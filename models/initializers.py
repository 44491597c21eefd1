"""Reads weights as read-only arrays, memory-mapped if they are external data."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.errors import DeviceError, InvalidModelError, first_line
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
"""The bytes of opened weight files, by location."""


def read_weights(proto: onnx.ModelProto, source: Path | None) -> dict[str, np.ndarray]:
    """Every top-level initializer by name, memory-mapped if it is external data.

    Sparse initializers become dense, and all other tensors get their payloads inline. `source` is the model's path.

    Raises:
        InvalidModelError: a payload is missing, too short, of an unknown type, or outside the model's folder.
    """
    graph = proto.graph
    weights: dict[str, np.ndarray] = {}
    maps: _Maps = {}
    _inline_external(proto, source, maps)
    _densify(graph)
    for tensor in graph.initializer:
        if tensor.name in weights:
            raise InvalidModelError(f"initializer {tensor.name!r} is defined twice.")
        weights[tensor.name] = _read(tensor, source, maps)
    return weights


def describe_weight(name: str, array: np.ndarray) -> TensorProto:
    """An initializer for an array, without its payload if that is larger than `INLINE_NBYTES`.

    Strings and packed types (less than a byte) always have their payload: their bytes differ from the array's.
    """
    if array.nbytes <= INLINE_NBYTES or array.dtype == object or is_packed(array.dtype):
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    tensor = TensorProto(name=name, dims=array.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=WEIGHTS_LOCATION)
    return tensor


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's payload is external data: see `describe_weight`."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def is_packed(dtype: np.dtype) -> bool:
    """Whether ONNX packs several numbers of this type into a byte; arrays do not."""
    return onnx.helper.np_dtype_to_tensor_dtype(dtype) in _PACKED


def read_tensor(tensor: TensorProto) -> np.ndarray:
    """A tensor with inline payload, as a read-only array.

    Raises:
        InvalidModelError: the payload does not fit the tensor's type and dimensions.
    """
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"initializer {tensor.name!r} has a negative dimension: {list(tensor.dims)}.")
    if tensor.data_location == TensorProto.EXTERNAL:  # onnx would look in the working folder
        raise InvalidModelError(f"tensor {tensor.name!r} has external data.\nSave its data inside the model.")
    try:
        array: np.ndarray = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, UnicodeDecodeError, OverflowError) as error:
        raise InvalidModelError(f"initializer {tensor.name!r} is broken: {first_line(error)}.") from error
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
    """A view of the file's one memory map; maps keep files open, and a process may open about a thousand."""
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
        return read_tensor(_with_payload(tensor, part))
    return part.view(dtype).reshape(tuple(tensor.dims))


def _mapped(name: str, location: str, source: Path | None) -> np.ndarray:
    with open_weights_file(name, location, source) as file:
        try:
            if os.fstat(file.fileno()).st_size == 0:
                return np.zeros(0, np.uint8)
            return np.memmap(file, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidModelError(f"weights file {location!r} cannot be read: {reason}.") from error


def _with_payload(tensor: TensorProto, content: np.ndarray) -> TensorProto:
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=content.tobytes())


def _inline_external(proto: onnx.ModelProto, source: Path | None, maps: _Maps) -> None:
    """Make all external data inline, except that of top-level initializers.

    onnx and onnxruntime would look for it in the working folder.
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
    """All tensors except dense top-level initializers: in nodes, subgraphs and functions."""
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
            raise InvalidModelError(f"sparse initializer {name!r} is broken: {first_line(error)}.") from error
        graph.initializer.append(numpy_helper.from_array(dense, name))
    del graph.sparse_initializer[:]


_CAN_OPEN_BELOW = os.open in os.supports_dir_fd  # not on Windows
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _CAN_OPEN_BELOW else 0
# Without O_NONBLOCK, opening a named pipe would block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _CAN_OPEN_BELOW else 0


def open_weights_file(name: str, location: str, source: Path | None) -> BinaryIO:
    """Open a file of weights for reading.

    Links are resolved first, and must stay in the model's folder. The file is then opened part by part from that folder
    without following links, so a link created meanwhile cannot redirect it.

    Args:
        name: of the weights, for messages.
        location: the path relative to the model's folder.
        source: the model's path; None for bytes.

    Raises:
        InvalidModelError: the file is missing, not regular, outside the model's folder, or unreadable.
        DeviceError: the system cannot open files in this way.
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
        home, inner = _resolved(name, location, source)
        return _opened(home, inner)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidModelError(
            f"weights file {path} is missing; it has {name!r}.\nPut it into the model's folder."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModelError(f"weights file {path} cannot be read: {reason}.") from error


def _resolved(name: str, location: str, source: Path) -> tuple[Path, Path]:
    """The model's folder and the file's path below it, both without links."""
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
    if not stat.S_ISREG(os.fstat(file).st_mode):  # `fdopen` would leak a folder
        os.close(file)
        raise FileNotFoundError(inner)
    return os.fdopen(file, "rb")
