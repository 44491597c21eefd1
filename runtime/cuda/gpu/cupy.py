"""CUDA through CuPy: a `Driver`, and the GPU's properties."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from iosched.models.errors import DeviceError
from iosched.runtime.cores import cpu_count
from iosched.runtime.cuda.gpu.driver import Memory, Number
from iosched.runtime.cuda.gpu.empty_node import add_empty_node
from iosched.runtime.cuda.gpu.extras import load_lazily
from iosched.runtime.cuda.gpu.failures import how_to_install, kept_if_lost, no_gpu_error, translated
from iosched.runtime.cuda.kernel import CudaCall, Gpu

P = ParamSpec("P")


R = TypeVar("R")


Method = Callable[Concatenate["CupyDriver", P], R]


def _with_our_errors(method: Method[P, R]) -> Method[P, R]:
    @wraps(method)
    def call(self: CupyDriver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with self.current():
                return method(self, *args, **kwargs)
        except self.failures as error:
            raise kept_if_lost(translated(error)) from error

    return call


@dataclass(frozen=True)
class GpuFacts:
    """Properties of a GPU.

    Attributes:
        gpu: the properties that kernels depend on.
        pci_bus_id: identifies the GPU; CUDA numbers GPUs differently from other tools.
        versions: of libraries that change latencies.
    """

    name: str
    gpu: Gpu
    l2_nbytes: int
    pci_bus_id: str
    versions: Mapping[str, str]


def _find_cache() -> None:
    """Gives CuPy, which creates its kernel cache on import, a temporary one if its own is not writable."""
    try:
        folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except (OSError, RuntimeError):  # there may be no home folder
        pass
    os.environ["CUPY_CACHE_DIR"] = found = mkdtemp(prefix="cupy-kernels-")
    atexit.register(rmtree, found, ignore_errors=True)


class CupyDriver:
    """The `Driver` of a GPU, through CuPy.

    All methods may raise these errors in addition to those of `Driver`.

    Attributes:
        index: CUDA's number of the GPU.
        count: GPUs that CUDA sees.

    Raises:
        ExecutionError: the GPU failed.
        DeviceLostError: the GPU is lost.
        DeviceError: the GPU is out of memory, or a library is missing.
    """

    def __init__(self, index: int = 0) -> None:
        """Starts GPU `index`.

        Raises:
            DeviceError: CuPy is not installed, or there is no such GPU.
        """
        _find_cache()
        try:
            import cupy
        except ImportError as error:
            raise DeviceError(f"CuPy is not installed; {how_to_install(index)}") from error
        except OSError as error:
            raise DeviceError(f"cannot load CuPy: {error}") from error
        self._cupy = cupy
        self.failures: tuple[type[Exception], ...] = (
            RuntimeError,  # CUDA runtime, driver, NVRTC, and missing libraries
            ImportError,
            OSError,  # the kernel cache cannot be written
            cupy.cuda.memory.OutOfMemoryError,
            cupy.cuda.compiler.CompileException,
        )
        runtime = cupy.cuda.runtime
        load_lazily(runtime.driverGetVersion())
        try:
            self.count = int(runtime.getDeviceCount())
        except RuntimeError as error:
            raise no_gpu_error(error, runtime.driverGetVersion(), runtime.runtimeGetVersion()) from error
        if index >= self.count:
            raise DeviceError(f"there is no GPU {index}: this machine has {self.count}; see `iosched devices`")
        self.index = index
        self._functions: dict[tuple[str, str], Any] = {}
        self._start()

    @_with_our_errors
    def _start(self) -> None:
        self._cupy.cuda.Device(self.index).use()

    def current(self) -> AbstractContextManager[object]:
        """See `Driver`."""
        cuda = self._cupy.cuda
        return nullcontext() if cuda.runtime.getDevice() == self.index else cuda.Device(self.index)

    @_with_our_errors
    def facts(self, index: int | None = None) -> GpuFacts:
        """Properties of a GPU; by default of this one."""
        index = self.index if index is None else index
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(index)
        versions = {
            "driver": str(runtime.driverGetVersion()),
            "cuda": str(runtime.runtimeGetVersion()),
            "nvrtc": ".".join(map(str, self._cupy.cuda.nvrtc.getVersion())),
            "cupy": str(self._cupy.__version__),
        }
        capability = 10 * int(properties["major"]) + int(properties["minor"])
        gpu = Gpu(capability, int(properties["multiProcessorCount"]))
        l2_nbytes = int(properties["l2CacheSize"])
        return GpuFacts(properties["name"].decode(), gpu, l2_nbytes, runtime.deviceGetPCIBusId(index), versions)

    @cached_property
    def gpu(self) -> Gpu:
        """See `Driver`."""
        return self.facts().gpu

    @cached_property
    def l2_nbytes(self) -> int:
        """See `Driver`."""
        return self.facts().l2_nbytes

    @_with_our_errors
    def allocate(self, nbytes: int) -> Memory:
        """See `Driver`."""
        try:
            found: Memory = self._cupy.cuda.alloc(max(nbytes, 1))
        except self._cupy.cuda.memory.OutOfMemoryError:
            gc.collect()  # reference cycles may keep memory alive
            found = self._cupy.cuda.alloc(max(nbytes, 1))
        return found

    @_with_our_errors
    def upload(self, address: int, content: np.ndarray, stream: Any) -> None:
        """See `Driver`."""
        if content.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(address, content.ctypes.data, content.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    @_with_our_errors
    def download(self, address: int, content: np.ndarray, stream: Any) -> None:
        """See `Driver`."""
        if content.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(content.ctypes.data, address, content.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        self.synchronize(stream)

    @_with_our_errors
    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """See `Driver`."""
        self._cupy.cuda.runtime.memsetAsync(address, value, nbytes, stream.ptr)

    @_with_our_errors
    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """See `Driver`."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream.ptr)

    @_with_our_errors
    def new_stream(self) -> Any:
        """See `Driver`."""
        return self._cupy.cuda.Stream(non_blocking=True)

    @_with_our_errors
    def new_event(self, *, timing: bool = False) -> Any:
        """See `Driver`."""
        return self._cupy.cuda.Event(disable_timing=not timing)

    @_with_our_errors
    def record(self, event: Any, stream: Any) -> None:
        """See `Driver`."""
        event.record(stream)

    @_with_our_errors
    def wait(self, stream: Any, event: Any) -> None:
        """See `Driver`."""
        stream.wait_event(event)

    @_with_our_errors
    def join(self, streams: Sequence[Any]) -> None:
        """See `Driver`."""
        add_empty_node([stream.ptr for stream in streams])

    @_with_our_errors
    def elapsed_us(self, start: Any, end: Any) -> float:
        """See `Driver`."""
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) * 1e3

    @_with_our_errors
    def synchronize(self, stream: Any) -> None:
        """See `Driver`."""
        stream.synchronize()

    @_with_our_errors
    def load(self, call: CudaCall) -> Any:
        """See `Driver`."""
        key = (call.source, call.entry)
        if key not in self._functions:
            self._functions[key] = self._compiled(call)
        return self._functions[key]

    def prepare(self, calls: Iterable[CudaCall]) -> None:
        """See `Driver`. NVRTC releases the GIL."""
        missing = {key: call for call in calls if (key := (call.source, call.entry)) not in self._functions}
        with ThreadPoolExecutor(cpu_count()) as threads:
            found = dict(zip(missing, threads.map(self._compiled_or_none, missing.values()), strict=True))
        self._functions |= {key: function for key, function in found.items() if function is not None}

    def _compiled_or_none(self, call: CudaCall) -> Any:
        with suppress(*self.failures), self.current():  # of this thread
            return self._compiled(call)
        return None

    def _compiled(self, call: CudaCall) -> Any:
        module = self._cupy.RawModule(code=call.source, backend="nvrtc", options=("--std=c++17",))
        return module.get_function(call.entry)

    @_with_our_errors
    def launch(self, function: Any, call: CudaCall, arguments: Sequence[Number], stream: Any) -> None:
        """See `Driver`."""
        with stream:
            function(call.grid, call.block, tuple(arguments))

    @_with_our_errors
    def begin_capture(self, stream: Any) -> None:
        """See `Driver`."""
        stream.begin_capture()

    @_with_our_errors
    def end_capture(self, stream: Any) -> Any:
        """See `Driver`."""
        return stream.end_capture()

    @_with_our_errors
    def launch_graph(self, graph: Any, stream: Any) -> None:
        """See `Driver`."""
        graph.launch(stream)
