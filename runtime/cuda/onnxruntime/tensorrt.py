"""A whole model in onnxruntime's TensorRT provider, in this process or in a separate one."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from iosched.models.errors import (
    DeviceError,
    InvalidModelError,
    IoschedError,
    ResourceError,
    SeparateProcessError,
    first_line,
)
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.cuda.gpu.failures import how_to_install
from iosched.runtime.cuda.gpu.lanes import elapsed_each_us
from iosched.runtime.cuda.onnxruntime.provider import Provider, bound_run, session_options, silenced
from iosched.runtime.inputs import Arrays
from iosched.runtime.session import load_onnxruntime, open_session, running
from iosched.scheduler.precision import DEFAULT_PRECISION

NAME = "TensorrtExecutionProvider"
MEMORY = "cuda"
COMMAND = (sys.executable, "-P", "-m", __name__)

OPENING_S = 1800.0
"""Seconds to build an engine, which takes minutes for large models."""

ANSWER_S, RUN_S = 60.0, 10.0
"""Seconds to wait for a process, and for each run, before it counts as hung."""


@dataclass(frozen=True)
class Engine:
    """The purpose of an engine.

    Attributes:
        gpu: CUDA's number of the GPU.
        key: text that differs for other models, shapes, GPUs, precisions and versions of CUDA.
    """

    gpu: int
    precision: str
    key: str


class TensorrtModel:
    """A session in which TensorRT runs every node; see `Runnable`."""

    def __init__(self, path: Path, engine: Engine) -> None:
        """Builds the engine, or takes it from the folder above the model's.

        Raises:
            DeviceError: TensorRT is not installed, or does not run the whole model.
        """
        self._provider = Provider(NAME, MEMORY, engine.gpu)
        self._provider.is_available()  # loads CUDA's libraries
        self.description = f"TensorRT {_loaded_version()} in onnxruntime {load_onnxruntime().__version__}"
        kept = path.parents[1] / hashlib.sha256(f"{engine.key} {self.description}".encode()).hexdigest()[:16]
        folder = kept if kept.is_dir() else path.with_name("engine")
        folder.mkdir(exist_ok=True)
        self._driver = CupyDriver(engine.gpu)
        self._stream = self._driver.new_stream()
        self._session = _whole_session(path, {
            "device_id": str(engine.gpu),
            "user_compute_stream": str(self._stream.ptr),
            "trt_fp16_enable": str(engine.precision == "fp16"),  # TF32 is on, and has no option
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(folder),
        })  # fmt: skip
        with suppress(OSError):  # another process has built the same engine
            folder.rename(kept)

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """See `Runnable`."""
        with running():
            found = self._session.run(None, dict(inputs))
        return dict(zip((each.name for each in self._session.get_outputs()), found, strict=True))

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds on the GPU of consecutive runs; the inputs are copied beforehand."""
        run = bound_run(self._session, self._provider, inputs)
        return tuple(elapsed_each_us(self._driver, self._stream, run, repeats))

    def close(self) -> None:
        """Frees the session."""
        self._session = None


def _loaded_version() -> str:
    """Loads TensorRT, from its wheel if installed, and returns its version."""
    onnxruntime, name = load_onnxruntime(), "libnvinfer.so.10"
    with suppress(ImportError):
        import_module("tensorrt_libs")
    try:
        provider = Path(onnxruntime.__file__ or "").parent / "capi" / "libonnxruntime_providers_tensorrt.so"
        name = re.findall(rb"libnvinfer\.so\.\d+", provider.read_bytes())[0].decode()
        number = int(ctypes.CDLL(name).getInferLibVersion())
    except (OSError, IndexError) as error:
        cuda = (getattr(onnxruntime, "cuda_version", "") or "13").partition(".")[0]
        wheel = f"tensorrt-cu{cuda}=={name.rpartition('.')[2]}.*"
        raise DeviceError(f"TensorRT's {name} does not load; pip install '{wheel}'") from error
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _whole_session(path: Path, settings: Mapping[str, str]) -> Any:
    options = session_options(wholly=True)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        with silenced():
            session = open_session(path, options, providers=[(NAME, dict(settings))])
    except (InvalidModelError, ResourceError) as error:
        raise DeviceError(f"TensorRT does not run the whole model: {first_line(error.__cause__ or error)}") from error
    used = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    if session.get_providers()[0] != NAME or used != {NAME}:
        raise DeviceError(f"TensorRT does not run the whole model, but {', '.join(sorted(used)) or 'no provider'}")
    return session


class TensorrtProcess:
    """A `TensorrtModel` in a separate process, which times itself; in fp32 it computes without TF32.

    TF32 is on by default and can be turned off only for a whole process. All methods raise a `SeparateProcessError` if
    the process fails, ends, or hangs; by then, it has ended.
    """

    def __init__(self, model: Model, engine: Engine, limit_s: float | None = None) -> None:
        """Builds the engine within `limit_s` seconds, or takes it from the cache folder.

        Raises:
            DeviceError: TensorRT is not installed, or does not run the whole model.
        """
        from multiprocessing import Pipe

        more = {"NVIDIA_TF32_OVERRIDE": "0"} if engine.precision == DEFAULT_PRECISION else {}
        self._lock, (self._connection, theirs) = threading.Lock(), Pipe()
        with written(model, engine) as path:
            with theirs:
                self._process = subprocess.Popen(
                    [*COMMAND, str(theirs.fileno())], env={**os.environ, **more}, pass_fds=[theirs.fileno()],
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            self.description = str(self._ask(OPENING_S if limit_s is None else limit_s, "open", path, engine))

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """See `Runnable`."""
        outputs: dict[str, Any] = self._ask(ANSWER_S, "run", dict(inputs))
        return outputs

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """See `TensorrtModel`."""
        return tuple(self._ask(ANSWER_S + RUN_S * repeats, "time", dict(inputs), repeats))

    def close(self) -> None:
        """Ends the process. May be called again."""
        self._process.kill()
        self._process.communicate()
        self._connection.close()

    def _ask(self, limit_s: float, *request: object) -> Any:
        with self._lock:
            try:
                self._connection.send(request)
                if not self._connection.poll(limit_s):
                    raise SeparateProcessError(f"its process did not {request[0]} the model within {limit_s:.0f} s")
                answer = self._connection.recv()
                if isinstance(answer, SeparateProcessError):
                    raise answer
            except BaseException as error:
                self.close()
                if isinstance(error, EOFError | OSError):
                    raise SeparateProcessError(f"its process ended with status {self._process.returncode}") from error
                raise
        return answer


def open_whole(model: Model, engine: Engine) -> TensorrtModel | TensorrtProcess:
    """Opens the model in this process, or for fp32 in a separate one; raises as both do."""
    if engine.precision == DEFAULT_PRECISION:
        return TensorrtProcess(model, engine)
    with written(model, engine) as path:
        return TensorrtModel(path, engine)


@contextmanager
def written(model: Model, engine: Engine) -> Iterator[Path]:
    """Writes a copy of the model to a temporary folder in the engine cache; yields its path or raises a DeviceError."""
    from platformdirs import user_cache_dir

    if NAME not in load_onnxruntime().get_available_providers():
        raise DeviceError(f"onnxruntime has no TensorRT provider; {how_to_install(engine.gpu)}")
    try:
        root = Path(user_cache_dir("iosched", appauthor=False), "tensorrt")
        root.mkdir(parents=True, exist_ok=True)
        building = TemporaryDirectory(prefix="building-", dir=root)
    except (OSError, RuntimeError) as error:  # such as a missing home folder
        raise DeviceError(f"the cache folder cannot keep an engine: {first_line(error)}") from error
    with building as folder:
        path = Path(folder, "model.onnx")  # onnxruntime's name of the engine depends on this name
        write_model(model.proto, model.weights, path)
        yield path


def serve(handle: int) -> None:
    """Answers a `TensorrtProcess` until it ends, or a request fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the parent decides when to end
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    from multiprocessing.connection import Connection

    connection = Connection(handle)
    _, *request = connection.recv()
    try:
        model = TensorrtModel(*request)
        connection.send(model.description)
        while True:
            name, *request = connection.recv()
            connection.send(getattr(model, name)(*request))
    except (IoschedError, RuntimeError, ValueError) as error:
        connection.send(SeparateProcessError(first_line(error)))


if __name__ == "__main__":
    with suppress(EOFError):
        serve(int(sys.argv[1]))
