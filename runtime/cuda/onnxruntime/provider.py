"""Runs operators in onnxruntime's CUDA provider in place, with the CPU as fallback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from typing import Any

import onnx

from iosched.models.errors import ExecutionError, InvalidModelError
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import Precision, SessionKernel
from iosched.runtime.cuda.onnxruntime.sessions import HostSessions, SessionDevice, SessionRun, Tensor
from iosched.runtime.inputs import Arrays
from iosched.runtime.session import load_onnxruntime, open_session, running

_CPU = "CPUExecutionProvider"


_WARNING, _FATAL = 2, 4  # onnxruntime's log levels; WARNING is the default


_DEVICE_MEMORY = "cuda"  # onnxruntime's name of it, in lower case


@dataclass(frozen=True)
class Provider:
    """An execution provider of onnxruntime on one device.

    Attributes:
        device: onnxruntime's name of the memory.
        options: except for those of the stream.
        takes_stream: whether it can run on a given stream.
    """

    name: str
    device: str
    index: int = 0
    options: tuple[tuple[str, str], ...] = ()
    takes_stream: bool = True

    @classmethod
    def cuda(cls, index: int, precision: Precision) -> Provider:
        """The CUDA provider at this precision."""
        options = {
            "device_id": str(index),
            "use_tf32": "1" if precision.name == "tf32" else "0",  # on by default
            "arena_extend_strategy": "kSameAsRequested",
        }
        return cls("CUDAExecutionProvider", "cuda", index, tuple(options.items()))

    def is_available(self) -> bool:
        """Whether onnxruntime has the provider; loads its libraries.

        Raises:
            DeviceError: onnxruntime is not installed.
        """
        onnxruntime = load_onnxruntime()
        if self.name not in onnxruntime.get_available_providers():
            return False
        if self.device == "cuda":
            _preload(onnxruntime.preload_dlls if hasattr(onnxruntime, "preload_dlls") else lambda: None)
        return True

    def with_stream(self, handle: int) -> dict[str, str]:
        """Session options for the stream with this handle."""
        return {**dict(self.options), **({"user_compute_stream": str(handle)} if self.takes_stream else {})}


@cache
def _preload(load: Callable[[], None]) -> None:
    with redirect_stdout(StringIO()), suppress(OSError, RuntimeError):
        load()


def _handle(stream: Any) -> int:
    return int(stream.ptr)


class ProviderSessions:
    """Runs operators with a provider, or on the CPU if it is missing or fails."""

    def __init__(self, driver: Driver, provider: Provider, handle: Callable[[Any], int] = _handle) -> None:
        """Opens nothing yet: most models do not need onnxruntime.

        Args:
            handle: returns the handle of a stream.
        """
        self._driver, self._provider, self._handle = driver, provider, handle
        self._is_available: bool | None = None
        self._opened: dict[tuple[SessionKernel, int], _ProviderSession | None] = {}

    def open(self, kernel: SessionKernel, reads: Sequence[Tensor], writes: Sequence[Tensor], stream: Any) -> SessionRun:
        """See `Sessions`."""
        session = self._session(kernel, self._handle(stream))
        runs_on = SessionDevice.CPU if self._is_available else SessionDevice.NO_PROVIDER
        host = HostSessions(self._driver, runs_on).open(kernel, reads, writes, stream)
        if session is None:
            return host
        return _WithFallback(_BoundRun(self._driver, session, self._provider, tuple(reads), tuple(writes)), host)

    def _session(self, kernel: SessionKernel, handle: int) -> _ProviderSession | None:
        if self._is_available is None:
            self._is_available = self._provider.is_available()
        if (kernel, handle) not in self._opened:
            self._opened[kernel, handle] = self._new_session(kernel, handle) if self._is_available else None
        return self._opened[kernel, handle]

    def _new_session(self, kernel: SessionKernel, handle: int) -> _ProviderSession | None:
        """A session on the provider, if necessary partly on the CPU; None if only the CPU can run it."""
        options = self._provider.with_stream(handle)
        for wholly in (True, False):
            providers = {self._provider.name: options} if wholly else {self._provider.name: options, _CPU: {}}
            try:
                with silenced():
                    settings = session_options(wholly=wholly)
                    session = open_session(kernel.model, settings, providers=list(providers.items()))
            except InvalidModelError:
                continue
            if self._provider.name in session.get_providers():
                return _ProviderSession.of(session, kernel.model, wholly=wholly, on_stream=self._provider.takes_stream)
            self._is_available = False  # its libraries do not load
        return None


def bound_run(session: Any, provider: Provider, inputs: Arrays) -> Callable[[], None]:
    """Runs of a whole model on inputs that are copied to the device now; outputs stay there."""
    binding, make = session.io_binding(), load_onnxruntime().OrtValue.ortvalue_from_numpy
    values = {name: make(array, provider.device, provider.index) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, provider.device, provider.index)
    return partial(_run_bound, session, binding, values)


def _run_bound(session: Any, binding: Any, kept_alive: object) -> None:
    del kept_alive
    with running():
        session.run_with_iobinding(binding)


@contextmanager
def silenced() -> Iterator[None]:
    """Silences onnxruntime's log about missing libraries; `SessionDevice` reports them."""
    onnxruntime = load_onnxruntime()
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)


def session_options(*, wholly: bool) -> Any:
    """Options of a silent session, in which `wholly` forbids nodes on the CPU."""
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = _FATAL
    if wholly:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


@dataclass(frozen=True, eq=False)
class _ProviderSession:
    """Attributes:
    inputs, outputs: names and ONNX element types.
    in_order: whether runs are ordered on our stream without host copies, so that the host need not synchronize.
    """

    session: Any
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    runs_on: SessionDevice
    in_order: bool

    @classmethod
    def of(cls, session: Any, model: bytes, *, wholly: bool, on_stream: bool) -> _ProviderSession:
        graph = onnx.load_from_string(model).graph
        inputs, outputs = (
            tuple((value.name, value.type.tensor_type.elem_type) for value in values)
            for values in (graph.input, graph.output)
        )
        runs_on = SessionDevice.PROVIDER if wholly else SessionDevice.PARTLY
        return cls(session, inputs, outputs, runs_on, wholly and on_stream and _is_on_device(session))


def _is_on_device(session: Any) -> bool:
    """Whether all inputs and outputs are in GPU memory; some kernels read shapes and counts on the host."""
    try:
        infos = [*session.get_input_memory_infos(), *session.get_output_memory_infos()]
    except (AttributeError, RuntimeError):  # an older onnxruntime
        return False
    return all(info.name.lower() == _DEVICE_MEMORY for info in infos)


class _BoundRun:
    def __init__(
        self,
        driver: Driver,
        session: _ProviderSession,
        provider: Provider,
        reads: tuple[Tensor, ...],
        writes: tuple[Tensor, ...],
    ) -> None:
        self._driver, self._session, self._provider = driver, session, provider
        self._reads, self._writes = reads, writes
        self._binding = session.session.io_binding()
        self._options = load_onnxruntime().RunOptions()
        if session.in_order:
            self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
            self._bind_inputs()
        for (name, kind), tensor in zip(session.outputs, writes, strict=True):
            self._binding.bind_output(name, *self._place(kind, tensor))

    @property
    def runs_on(self) -> SessionDevice:
        return self._session.runs_on

    def __call__(self, stream: Any) -> None:
        if self._session.in_order:
            with running():
                self._session.session.run_with_iobinding(self._binding, self._options)
            return
        self._driver.synchronize(stream)
        with running():
            self._bind_inputs()  # copies host inputs of kernels now, not during the run
            self._binding.synchronize_inputs()
            self._session.session.run_with_iobinding(self._binding, self._options)
            self._binding.synchronize_outputs()

    def _bind_inputs(self) -> None:
        for (name, kind), tensor in zip(self._session.inputs, self._reads, strict=True):
            self._binding.bind_input(name, *self._place(kind, tensor))

    def _place(self, kind: int, tensor: Tensor) -> tuple[str, int, int, list[int], int]:
        return self._provider.device, self._provider.index, kind, list(tensor.view.shape or ()), tensor.address


class _WithFallback:
    """Switches to the CPU if the first run fails: not every kernel of a provider runs on every GPU."""

    def __init__(self, wanted: SessionRun, otherwise: SessionRun) -> None:
        self._run, self._otherwise = wanted, otherwise
        self._has_run = False

    @property
    def runs_on(self) -> SessionDevice:
        return self._run.runs_on

    def __call__(self, stream: Any) -> None:
        try:
            self._run(stream)
        except ExecutionError:
            if self._has_run:
                raise
            self._run = self._otherwise
            self._run(stream)
        self._has_run = True
