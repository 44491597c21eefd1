"""The compiled executor as a library of C functions: found, declared and called through ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from iosched.runtime.missing_dependencies import failure, way_to_install

_ABI_VERSION = 9
_ERROR_NBYTES = 2048
_FILE = "_executor.so"
_NOT_BUILT = "the compiled executor is not built; " + (
    "install a C++ compiler and reinstall iosched from source" if sys.platform == "linux" else "it runs on Linux only"
)
_REBUILD = "rebuild it with 'pip install -e .' in a clone, or reinstall iosched"


def available() -> bool:
    """Whether plans can run natively."""
    return missing() is None


@cache
def missing() -> str | None:
    """Why plans cannot run natively, and how to fix it; None if they can."""
    found = _found()
    if isinstance(found, str):
        return found
    if onnxruntime_path() is None:
        return f"onnxruntime's shared library was not found; {way_to_install('cpu')}"
    return None


def was_built() -> bool:
    """Whether there is a compiled executor, even an unusable one."""
    return _found() != _NOT_BUILT


def version() -> str | None:
    """Interface version and file name of the compiled executor; None if it is unusable."""
    found = compiled()
    return None if found is None else f"{found.iosched_abi_version()} ({Path(found._name).name})"


def compiled() -> ctypes.CDLL | None:
    """The library; None if it is not built, or for another version of iosched."""
    found = _found()
    return None if isinstance(found, str) else found


@cache
def _found() -> ctypes.CDLL | str:
    folder = Path(__file__).parent
    refused = []
    # Up to 0.1.0 the name contained the Python version, and a clone may still have such a file.
    for path in sorted(folder.glob("_executor*.so"), key=lambda path: (path.name != _FILE, path.name)):
        try:
            library = ctypes.CDLL(str(path))
            version = library.iosched_abi_version()
        except (OSError, AttributeError):
            refused.append(f"the compiled executor ({path.name}) does not load; {_REBUILD}")
            continue
        if version == _ABI_VERSION:
            return _declared(library)
        refused.append(f"the compiled executor ({path.name}) was built for another version of iosched; {_REBUILD}")
    return refused[0] if refused else _NOT_BUILT


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "runtime_create": (pointer, [pointer, text]),
        "session_create": (
            pointer,
            [pointer, text, size, pointer, size, pointer, size, pointer, size, pointer, size, text],
        ),
        "runtime_prepare": (ctypes.c_int, [pointer, text]),
        "operators_inferred": (ctypes.c_int, [pointer, pointer, size, pointer, text]),
        "checksum": (ctypes.c_uint64, [pointer, size]),
        "processor": (text, []),
        "plan_open": (pointer, [text, pointer, pointer]),
        "plan_describe": (ctypes.c_int, [pointer, size, pointer]),
        "plan_run": (ctypes.c_int, [pointer, size, pointer, pointer, pointer, pointer]),
        "plan_time": (ctypes.c_int, [pointer, size, pointer, pointer, size, pointer]),
        "plan_close": (None, [pointer]),
        "plan_error": (text, []),
        "operator_create": (pointer, [pointer, pointer, text]),
        "executor_create": (pointer, [pointer, pointer, size, pointer, size, pointer, size, text]),
        "executor_run": (ctypes.c_int, [pointer, pointer, pointer, size, size, pointer, size, pointer, pointer, text]),
        "executor_dynamic": (ctypes.c_int, [pointer, size, pointer, pointer, text]),
        "executor_release_dynamic": (None, [pointer]),
        "executor_failed_task": (size, [pointer]),
        "runtime_release": (None, [pointer]),
        "kernel_release": (None, [pointer]),
        "executor_release": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"iosched_{name}")
        function.restype, function.argtypes = result, arguments
    return library


@cache
def onnxruntime_path() -> Path | None:
    """The shared library of the installed onnxruntime; None if there is none."""
    spec = importlib.util.find_spec("onnxruntime")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted((Path(folder) / "capi").glob("libonnxruntime.so*"))
        if found:
            return found[0]
    return None


def include_path() -> str:
    """The folder of `iosched_plan.h`, for C programs that run plan files; the library is `../_executor.so` from there.

    Returns:
        An absolute path.
    """
    return str(Path(__file__).resolve().parent / "include")


def load(path: Path) -> ctypes.CDLL:
    """Load a library by its path.

    Raises:
        ExecutionError: it does not load.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise failure(str(error), f"{path.name} does not load: {error}") from error


def api_base(path: Path) -> int:
    """The table of functions of the onnxruntime at `path`, for the compiled executor; raises as `load`."""
    get_api_base = load(path).OrtGetApiBase
    get_api_base.restype = ctypes.c_void_p
    return int(get_api_base())


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of the library, whose last parameter receives an error text.

    Raises:
        ExecutionError: with that text; a `ResourceError` if the machine lacks a resource.
    """
    return call_with_error_buffer(error_text(), function, *arguments)


def error_text() -> ctypes.Array[ctypes.c_char]:
    """A buffer for an error text."""
    return ctypes.create_string_buffer(_ERROR_NBYTES)


def call_with_error_buffer(error: ctypes.Array[ctypes.c_char], function: Callable[..., Any], *arguments: object) -> Any:
    """Like `call`, with an error buffer that one thread reuses."""
    result = function(*arguments, error)
    if text := error.value:
        raise failure(text.decode(errors="replace"))
    return result
