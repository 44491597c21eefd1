"""Arrays of `run`: `.npy` inputs and `.npz` outputs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from iosched.cli.common.text import shape_text
from iosched.models.errors import UsageError
from iosched.models.graph import TensorSpec


def read_inputs(files: Sequence[tuple[str, Path]], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Arrays of `--input NAME=F.npy`, checked against the model.

    Raises:
        UsageError: an unknown or repeated name, an unreadable file, or a wrong shape or type.
    """
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, np.ndarray] = {}
    for name, path in files:
        if name not in known:
            raise UsageError(f"--input {name}: the model has no such input; it has {', '.join(known) or 'none'}")
        if name in arrays:
            raise UsageError(f"--input {name} is given twice")
        arrays[name] = _checked(read_array(path), known[name], path)
    return arrays


def read_array(path: Path) -> np.ndarray:
    """Read a `.npy` file, without unpickling and without allocating more than the file's size.

    Raises:
        UsageError: the file does not exist, or is not a `.npy` file.
    """
    with _readable(path):
        return np.array(_mapped(path))


def array_shape(path: Path) -> tuple[int, ...]:
    """Shape of the array in a `.npy` file, without reading its elements; raises like `read_array`."""
    with _readable(path):
        return tuple(_mapped(path).shape)


def _mapped(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise UsageError(f"{path} is not a .npy file: write it with numpy.save")
    return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}: give a .npy file") from None
    except (ValueError, EOFError, SyntaxError, MemoryError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{path} is not a readable .npy file ({reason}): write it with numpy.save") from None


def _checked(array: np.ndarray, spec: TensorSpec, path: Path) -> np.ndarray:
    if spec.dtype == "string" and array.dtype.kind == "U":
        array = array.astype(object)
    elif array.dtype.name != spec.dtype:
        raise UsageError(f"--input {spec.name}: {path} holds {array.dtype.name}, the model expects {spec.dtype}")
    else:
        array = array.astype(array.dtype.newbyteorder("="))
    if spec.shape is not None and array.shape != spec.shape:
        raise UsageError(
            f"--input {spec.name}: {path} has shape {shape_text(array.shape)}, "
            f"the model expects {shape_text(spec.shape)}"
        )
    return array


def npz(outputs: Mapping[str, object]) -> bytes:
    """Bytes of an `.npz` archive; unlike with `numpy.savez`, outputs may have any name.

    Raises:
        UsageError: an output is not an array.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, value in outputs.items():
            if not isinstance(value, np.ndarray):
                raise UsageError(f"output {name!r} is a {type(value).__name__}, which an .npz file cannot hold")
            array = value.astype(str) if value.dtype == object else value
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()
