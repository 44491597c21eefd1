"""Runs a model on DLPack arrays in GPU memory, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import TensorSpec
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.gpu.exchange import DeviceArray, Exchange, ImportedArray, host_array
from iosched.runtime.cuda.gpu.lanes import synchronized_on_error
from iosched.runtime.cuda.lower.lowered_model import CALLER_SUFFIX
from iosched.runtime.cuda.source.elements import MAX_ACCESS_NBYTES


class InPlaceRuns:
    """Runs of one model on arrays of other libraries; captures of the last few sets of addresses are kept."""

    def __init__(self, executor: CudaExecutor, exchange: Exchange, inputs: Mapping[str, TensorSpec]) -> None:
        self._executor, self._driver = executor, executor.driver
        self._exchange, self._inputs = exchange, inputs
        self._held: list[object] = []

    def run(self, inputs: Mapping[str, Any], stream: int | None) -> dict[str, DeviceArray]:
        """One run; see `CudaModel.run_on_device`."""
        check_names(self._inputs, inputs)
        origin = self._executor.origin
        caller_stream = None if stream is None else self._exchange.stream_of(stream)
        held: list[object] = []
        with synchronized_on_error(self._driver, (origin,)):
            if caller_stream is not None:
                self._wait(origin, caller_stream)
            self._executor.launch_at(self._addresses(inputs, held, waits=caller_stream is None))
        if caller_stream is None:
            self._driver.synchronize(origin)
        else:
            self._wait(caller_stream, origin)
        self._held = [] if caller_stream is None else held
        return self._outputs()

    def _addresses(self, inputs: Mapping[str, Any], held: list[object], *, waits: bool) -> dict[str, int]:
        addresses: dict[str, int] = {}
        for view in self._executor.inputs:
            placed = self._placed(view.buffer, inputs[view.buffer.removesuffix(CALLER_SUFFIX)], waits=waits)
            held.append(placed)
            if isinstance(placed, ImportedArray) and not placed.address % MAX_ACCESS_NBYTES:
                addresses[view.buffer] = placed.address
        return addresses

    def _placed(self, buffer: str, array: Any, *, waits: bool) -> ImportedArray | np.ndarray:
        """The array, copied to the input buffer if kernels cannot read it in place; it must outlive the copy."""
        name, origin = buffer.removesuffix(CALLER_SUFFIX), self._executor.origin
        spec = self._inputs[name]
        on_host = host_array(name, array)
        if on_host is not None:
            content = checked(spec, on_host)
            if not waits:  # pinned memory is read later, and may be refilled by then
                content = np.array(content)
            self._driver.upload(self._executor.address_of(buffer), content, origin)
            return content
        imported = self._import(spec, array)
        if imported.address % MAX_ACCESS_NBYTES:
            self._driver.copy(self._executor.address_of(buffer), imported.address, spec.nbytes, origin)
        return imported

    def _import(self, spec: TensorSpec, array: Any) -> ImportedArray:
        index = array.__dlpack_device__()[1]
        if index != self._exchange.index:
            raise UsageError(f"input {spec.name!r} is on GPU {index}, but the model is on GPU {self._exchange.index}")
        try:
            imported = self._exchange.import_array(array, self._executor.origin)
        except BufferError as error:
            raise UsageError(f"cannot read input {spec.name!r} in place: {error}") from error
        check_form(spec, imported.dtype, imported.shape)
        if not imported.is_contiguous:
            raise UsageError(f"input {spec.name!r} is not contiguous: pass a contiguous, row-major array")
        return imported

    def _wait(self, later: Any, earlier: Any) -> None:
        event = self._driver.new_event()
        self._driver.record(event, earlier)
        self._driver.wait(later, event)

    def _outputs(self) -> dict[str, DeviceArray]:
        executor, export = self._executor, self._exchange.export_array
        return {
            view.buffer.removesuffix(CALLER_SUFFIX): export(
                executor.address_of(view.buffer), view, executor.memory_of(view.buffer), executor.origin
            )
            for view in executor.outputs
        }


def check_names(wanted: Mapping[str, TensorSpec], inputs: Mapping[str, Any]) -> None:
    """Checks the names of inputs.

    Raises:
        UsageError: an input is missing or unknown.
    """
    if missing := [name for name in wanted if name not in inputs]:
        raise UsageError(f"input {missing[0]!r} is missing")
    if unknown := [name for name in inputs if name not in wanted]:
        raise UsageError(f"the model has no input {unknown[0]!r}; it has {', '.join(wanted)}")


def checked(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """`array` in row-major order.

    Raises:
        UsageError: its type or shape is wrong.
    """
    check_form(spec, str(array.dtype), array.shape)
    return np.asarray(array, order="C")


def check_form(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> None:
    """Checks type and shape of an input.

    Raises:
        UsageError: one is wrong.
    """
    if (dtype, shape) != (spec.dtype, spec.shape):
        raise UsageError(
            f"input {spec.name!r} is {_form(dtype, shape)}; expected {_form(spec.dtype, spec.shape or ())}"
        )


def _form(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} of shape {'x'.join(map(str, shape)) or '()'}"
