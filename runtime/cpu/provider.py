"""The execution provider of the compiled library for onnxruntime, and the digests of graphs that it computes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from iosched.models.errors import DeviceError, InvalidModelError
from iosched.runtime.cpu.library import compiled, missing
from iosched.runtime.missing_dependencies import way_to_install
from iosched.runtime.session import load_onnxruntime, open_session

NAME = "iosched"
_REGISTERED_AS = "iosched.record"
_DIGEST = re.compile("[0-9a-f]{16}")
_lock = Lock()


def plugin_path() -> str:
    """The library to pass to `onnxruntime.register_execution_provider_library`.

    Raises:
        DeviceError: it is not built, or onnxruntime is missing or older than 1.23.
    """
    onnxruntime, library = load_onnxruntime(), compiled()
    if library is None:
        raise DeviceError(f"onnxruntime cannot load iosched: {missing()}")
    found = onnxruntime.__version__
    if tuple(int(number) for number in found.split(".")[:2]) < (1, 23):
        raise DeviceError(f"the provider needs onnxruntime 1.23 or newer, not {found}; {way_to_install('cpu', '-U ')}")
    return str(Path(library._name).resolve())


def graph_digests(path: Path) -> tuple[int, ...]:
    """Digests of the graphs that onnxruntime shows to providers, by default and without its optimizations.

    Raises:
        InvalidModelError: onnxruntime refuses the model, or its graph has no digest.
        DeviceError: as of `plugin_path`.
    """
    levels = load_onnxruntime().GraphOptimizationLevel
    with _devices() as devices, tempfile.TemporaryDirectory() as folder:
        lines: list[str] = []
        for level in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL):
            lines += _recorded(path, devices, level, Path(folder, level.name))
    if problem := next((line for line in lines if not _DIGEST.fullmatch(line)), None):
        raise InvalidModelError(f"{path.name} has no digest: {problem}")
    return tuple(dict.fromkeys(int(line, 16) for line in lines))


def _recorded(path: Path, devices: list[Any], level: Any, record: Path) -> list[str]:
    """The lines that the provider writes while `path` is opened."""
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_provider_for_devices(devices, {"record": str(record)})
    open_session(path, options, providers=(), called=path.name)
    if not record.exists():
        raise InvalidModelError(f"{path.name} has no digest: onnxruntime shows no graph of it to providers")
    return record.read_text(encoding="utf-8").splitlines()


@contextmanager
def _devices() -> Iterator[list[Any]]:
    """The devices of the user's registered provider, or of one that is registered only for this context."""
    library, onnxruntime = plugin_path(), load_onnxruntime()
    with _lock:
        if known := _known():
            yield known
            return
        onnxruntime.register_execution_provider_library(_REGISTERED_AS, library)
        try:
            yield _known()
        finally:
            onnxruntime.unregister_execution_provider_library(_REGISTERED_AS)


def _known() -> list[Any]:
    return [each for each in load_onnxruntime().get_ep_devices() if each.ep_name == NAME][:1]
