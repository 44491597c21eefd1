"""OpenVINO's C interface, from the installed wheel, through ctypes; OpenVINO's Python package is not imported."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.missing_dependencies import way_to_install

_WAY = way_to_install("openvino")
OLDEST = 2026
"""Earlier releases number the element types of the C interface differently."""

_MAX_REASON = 300
_NOISE = ("Exception from ", "Check '", "FrontEnd API failed", "Model wasn't fully converted", "Summary:")
_POINTER, _SIZE, _TEXT, _COUNT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int64


class Shape(ctypes.Structure):
    """Shape of a tensor."""

    _fields_ = (("rank", _COUNT), ("dims", ctypes.POINTER(_COUNT)))


class PartialShape(ctypes.Structure):
    """A shape that an input is bound to; created by `ov_partial_shape_create_static`."""

    _fields_ = (("rank_from", _COUNT), ("rank_to", _COUNT), ("dims", _POINTER))


_SIGNATURES: dict[str, list[Any]] = {
    "ov_core_create": [_POINTER],
    "ov_core_read_model": [_POINTER, _TEXT, _TEXT, _POINTER],
    "ov_core_read_model_from_memory_buffer": [_POINTER, _TEXT, _SIZE, _POINTER, _POINTER],
    "ov_core_compile_model": [_POINTER, _POINTER, _TEXT, _SIZE, _POINTER],  # and pairs of a property and its value
    "ov_compiled_model_create_infer_request": [_POINTER, _POINTER],
    "ov_partial_shape_create_static": [_COUNT, _POINTER, _POINTER],
    "ov_model_const_input_by_name": [_POINTER, _TEXT, _POINTER],
    "ov_model_reshape": [_POINTER, _POINTER, _POINTER, _SIZE],
    "ov_tensor_create_from_host_ptr": [ctypes.c_int, Shape, _POINTER, _POINTER],
    "ov_tensor_get_element_type": [_POINTER, _POINTER],
    "ov_tensor_get_shape": [_POINTER, _POINTER],
    "ov_tensor_get_byte_size": [_POINTER, _POINTER],
    "ov_tensor_data": [_POINTER, _POINTER],
    "ov_infer_request_set_tensor": [_POINTER, _TEXT, _POINTER],
    "ov_infer_request_get_tensor": [_POINTER, _TEXT, _POINTER],
    "ov_infer_request_infer": [_POINTER],
}
_RELEASES = ("core", "model", "compiled_model", "infer_request", "tensor", "output_const_port")


def available() -> bool:
    """Whether models can run on OpenVINO."""
    return missing() is None


@cache
def missing() -> str | None:
    """Why models cannot run on OpenVINO, and how to fix it; None if they can."""
    found = installed_version()
    if found is None:
        return f"OpenVINO is not installed; {_WAY}"
    if not found.partition(".")[0].isdecimal() or int(found.partition(".")[0]) < OLDEST:
        return f"OpenVINO {found} is too old; for {OLDEST}.0 or newer, {_WAY}"
    if loaded() is None:
        return f"OpenVINO {found} is installed, but its library does not load; to reinstall it, {_WAY}"
    return None


@cache
def installed_version() -> str | None:
    """Version of the package; None if it is not installed."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


@cache
def loaded() -> ctypes.CDLL | None:
    """The library with its functions declared; None if missing or incomplete."""
    spec = importlib.util.find_spec("openvino")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = [path for folder in folders for path in sorted((Path(folder) / "libs").glob("libopenvino_c.so*"))]
    try:
        return _declared(ctypes.CDLL(str(paths[0]))) if paths else None
    except (OSError, AttributeError):
        return None


def library() -> ctypes.CDLL:
    """The library.

    Raises:
        DeviceError: it is missing; the text says what to install.
    """
    found = None if missing() else loaded()
    if found is None:
        raise DeviceError(str(missing()))
    return found


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _SIGNATURES.items():
        getattr(found, name).argtypes = arguments
    for name in _RELEASES:
        getattr(found, f"ov_{name}_free").restype = None
        getattr(found, f"ov_{name}_free").argtypes = [_POINTER]
    found.ov_partial_shape_free.restype, found.ov_partial_shape_free.argtypes = None, [_POINTER]
    found.ov_shape_free.argtypes = [_POINTER]
    found.ov_get_last_err_msg.restype = _TEXT
    return found


def call(name: str, *arguments: object) -> None:
    """Call a function of the library.

    Raises:
        ExecutionError: the function fails; the text is a line of OpenVINO's message.
    """
    found = library()
    function: Callable[..., int] = getattr(found, name)
    if function(*arguments):
        raise ExecutionError(useful_line((found.ov_get_last_err_msg() or b"").decode(errors="replace")) or name)


def useful_line(text: str) -> str:
    """The first line of OpenVINO's message that is about the model, not about OpenVINO's source files."""
    lines = [line.strip().removeprefix("-- ") for line in text.splitlines()]
    found = next((line for line in lines if line and not line.startswith(_NOISE)), next(iter(lines), ""))
    return found if len(found) <= _MAX_REASON else found[: _MAX_REASON - 3] + "..."
