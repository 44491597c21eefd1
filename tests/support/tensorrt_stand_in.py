"""Replaces TensorRT: a session of onnxruntime that claims to use it computes on the CPU. Also runs as the process.

    python tensorrt_stand_in.py HANDLE

`STAND_IN` in the environment names the fault, and `STAND_IN_US` is the time of a run. Each process writes a line of
JSON to the file `STAND_IN_LOG` when it has opened a model.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
from host_driver import HostDriver

from iosched.runtime.cuda.onnxruntime import tensorrt

OPEN, CPU = onnxruntime.InferenceSession, "CPUExecutionProvider"
LISTED = [tensorrt.NAME, "CUDAExecutionProvider", CPU]  # as every wheel of onnxruntime-gpu does


def fault() -> str:
    return os.environ.get("STAND_IN", "")


class Session:
    """A session on the CPU that claims that TensorRT runs it."""

    def __init__(self, path: str, options: Any, providers: Any, enable_fallback: int) -> None:
        ((name, given),) = providers
        assert name == tensorrt.NAME
        assert options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
        assert enable_fallback == 0
        if fault() == "no libraries":  # onnxruntime then goes on without the provider
            with warnings.catch_warnings(action="ignore"):
                OPEN(path, options, providers=[name])
        if fault() == "builds slowly":
            time.sleep(60)
        if fault() == "dies while it builds":
            os._exit(3)
        engine = Path(given["trt_engine_cache_path"], "engine")
        with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
            found = {"pid": os.getpid(), "tf32": os.environ.get("NVIDIA_TF32_OVERRIDE"), "built": not engine.exists()}
            print(json.dumps({**given, **found}), file=log)
        engine.write_text(path)
        self._session = OPEN(path, providers=[CPU])
        self.get_outputs = self._session.get_outputs
        self.io_binding = self._session.io_binding

    def get_providers(self) -> list[str]:
        return [CPU] if fault() == "falls back silently" else [tensorrt.NAME, CPU]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        used = {"runs a part": [tensorrt.NAME, CPU], "falls back silently": [CPU]}.get(fault(), [tensorrt.NAME])
        return [SimpleNamespace(ep_name=name) for name in used]

    def run(self, names: None, inputs: Any) -> Any:
        if fault() == "fails":
            raise RuntimeError("an illegal memory access was encountered")
        found = self._session.run(names, inputs)
        return [each + 1 for each in found] if fault() == "computes otherwise" else found

    def run_with_iobinding(self, binding: Any) -> None:
        self._session.run_with_iobinding(binding)


def timed(driver: object, stream: object, run: Callable[[], None], repeats: int) -> list[float]:
    if fault() == "dies":
        os._exit(7)
    if fault() == "hangs":
        time.sleep(60)
    for _ in range(repeats):
        run()
    return [float(os.environ["STAND_IN_US"])] * repeats


def install(patch: Callable[[object, str, object], None]) -> None:
    """TensorRT is installed, and a GPU of host memory attached."""
    patch(onnxruntime, "get_available_providers", lambda: LISTED)
    if fault() != "not installed":
        patch(tensorrt, "_loaded_version", lambda: "10.13.2")
    patch(tensorrt, "CupyDriver", lambda index: HostDriver())
    patch(tensorrt, "MEMORY", "cpu")
    patch(tensorrt, "elapsed_each_us", timed)
    patch(onnxruntime, "InferenceSession", opened)


def opened(model: Any, options: Any = None, providers: Any = None, **more: Any) -> Any:
    is_ours = [name for name in providers or () if name[0] == tensorrt.NAME]
    return Session(model, options, providers, **more) if is_ours else OPEN(model, options, providers, **more)


def stand_in(monkeypatch: pytest.MonkeyPatch, log: Path, fault: str = "", us: float = 1.0) -> Callable[[], list[Any]]:
    """Installs it in this process and those that it starts; returns a function that reads the log."""
    for name, value in {"STAND_IN": fault, "STAND_IN_LOG": str(log), "STAND_IN_US": str(us)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tensorrt, "COMMAND", (sys.executable, __file__))
    install(monkeypatch.setattr)
    return lambda: [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


if __name__ == "__main__":
    install(setattr)
    with suppress(EOFError):
        tensorrt.serve(int(sys.argv[1]))
