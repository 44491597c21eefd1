"""Runs plan files through the C interface that `include/iosched_plan.h` describes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.graph import TensorSpec
from iosched.runtime.cpu.arrays import address, aligned_empty, checked_inputs
from iosched.runtime.cpu.kernels import DTYPE_NAME
from iosched.runtime.cpu.library import api_base, compiled, missing, onnxruntime_path
from iosched.runtime.handle import Handle
from iosched.runtime.inputs import Arrays, numpy_dtype
from iosched.runtime.missing_dependencies import failure
from iosched.runtime.plan import View

_FORKED = "this plan was opened before the process forked: open it again in the child"
_ALLOCATE = ctypes.CFUNCTYPE(
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t, ctypes.c_size_t),
)


class _Options(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("cpus", ctypes.POINTER(ctypes.c_int32)), ("n_cpus", ctypes.c_size_t))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("nbytes", ctypes.c_size_t),
    )


class _Description(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("size", "n_programs", "n_lanes", "n_inputs", "n_outputs")),
        ("inputs", ctypes.POINTER(_Tensor)),
        ("outputs", ctypes.POINTER(_Tensor)),
        ("model_sha256", ctypes.c_char_p),
    )


class PlanModel:
    """A plan file that is open: a model at one or several sets of input shapes. Threads may call it; runs queue.

    Attributes:
        programs: one for each set of input shapes.
        lanes: threads of a run.
        model_sha256: of the ONNX file that it was exported with.
    """

    def __init__(self, path: Path, cpus: Sequence[int] = ()) -> None:
        """Open a plan, and pin its lanes to these processors, if any.

        Raises:
            DeviceError: the compiled executor or onnxruntime is missing.
            ExecutionError: the plan is broken, or for another machine or onnxruntime.
        """
        library, onnxruntime = compiled(), onnxruntime_path()
        if library is None or onnxruntime is None:
            raise DeviceError(f"a plan cannot run: {missing()}")
        self._library = library
        pinned = (ctypes.c_int32 * len(cpus))(*cpus)
        options = _Options(ctypes.sizeof(_Options), pinned if cpus else None, len(cpus))
        pointer = library.iosched_plan_open(os.fsencode(path), api_base(onnxruntime), ctypes.byref(options))
        if not pointer:
            raise self._failure()
        self._handle = Handle(pointer, library.iosched_plan_close)
        first = self._described(0)
        self.lanes = first.n_lanes
        self.model_sha256: str = _text(first.model_sha256)
        self.programs = tuple(PlanInterface.of(self._described(number)) for number in range(first.n_programs))

    def program(self, shapes: Sequence[tuple[int, ...]]) -> OpenedProgram | None:
        """The program for inputs of these shapes, in the model's order; None if there is none."""
        for number, each in enumerate(self.programs):
            if [spec.shape for spec in each.inputs] == list(shapes):
                return OpenedProgram(self, number)
        return None

    def close(self) -> None:
        """Free threads, kernels and memory. May be called again."""
        self._handle.close()

    def _described(self, program: int) -> _Description:
        found = _Description(size=ctypes.sizeof(_Description))
        if self._library.iosched_plan_describe(self._handle.pointer, program, ctypes.byref(found)):
            raise self._failure()
        return found

    def _failure(self) -> ExecutionError:
        return failure(self._library.iosched_plan_error().decode(errors="replace"))


@dataclass(frozen=True)
class PlanInterface:
    """Inputs and outputs of a program; the shape of an output is None if it is known only after a run."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, description: Any) -> Self:
        """What the library describes."""
        inputs = tuple(_spec(description.inputs[i]) for i in range(description.n_inputs))
        return cls(inputs, tuple(_spec(description.outputs[i]) for i in range(description.n_outputs)))


def _spec(tensor: Any) -> TensorSpec:
    shape = None if tensor.rank < 0 else tuple(tensor.shape[: tensor.rank])
    return TensorSpec(_text(tensor.name), DTYPE_NAME[tensor.type], shape)


def _text(content: bytes) -> str:
    """A text of the plan, which may be any bytes: different ones stay different."""
    return content.decode(errors="surrogateescape")


class OpenedProgram:
    """A program of an open plan; a `Runnable`, whose `close` closes the plan."""

    def __init__(self, plan: PlanModel, number: int) -> None:
        """Take a program of `plan`."""
        self._plan, self._number = plan, number
        interface = plan.programs[number]
        self._inputs = tuple(_view(spec) for spec in interface.inputs)
        self._outputs = interface.outputs
        self._run = plan._library.iosched_plan_run

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run once; the results are new arrays.

        Raises:
            ExecutionError: a kernel fails; the plan stays usable.
            UsageError: an input is missing, or has another type or shape.
        """
        arrays = checked_inputs(self._inputs, inputs)
        found = {spec.name: _array(spec) for spec in self._outputs if spec.shape is not None}
        allocate = partial(self._allocate, found)
        self._call(
            self._run, _pointers(arrays), self._targets(found), ctypes.cast(_ALLOCATE(allocate), ctypes.c_void_p), None
        )
        return {spec.name: found[spec.name] for spec in self._outputs}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run."""
        return self.trace(inputs, repeats)[0]

    def trace(self, inputs: Arrays, repeats: int, tasks: int = 0) -> tuple[tuple[float, ...], np.ndarray]:
        """Run `repeats` times; microseconds of each run, and begin and end of each of its `tasks`, lane after lane."""
        arrays = checked_inputs(self._inputs, inputs)
        found = {spec.name: _array(spec) for spec in self._outputs if spec.shape is not None}
        times_us, spans_us = np.zeros(repeats), np.zeros((repeats, tasks, 2))
        spans = address(spans_us) if tasks else None
        run = self._plan._library.iosched_plan_time
        self._call(run, _pointers(arrays), self._targets(found), repeats, address(times_us), spans)
        return tuple(times_us.tolist()), spans_us

    def close(self) -> None:
        """Close the plan."""
        self._plan.close()

    def _targets(self, found: Arrays) -> ctypes.Array[ctypes.c_void_p]:
        return _pointers([found.get(spec.name) for spec in self._outputs])

    def _allocate(
        self, found: dict[str, np.ndarray], _: int, output: int, shape: Any, rank: int, nbytes: int
    ) -> int | None:
        spec = self._outputs[output]
        array = found[spec.name] = _array(TensorSpec(spec.name, spec.dtype, tuple(shape[:rank])))
        return address(array) if nbytes else address(aligned_empty(8))

    def _call(self, function: Any, *arguments: object) -> None:
        if self._plan._handle.is_inherited:
            raise ExecutionError(_FORKED)
        if not self._plan._handle.close.alive:
            raise ValueError("the plan is closed")
        if function(self._plan._handle.pointer, self._number, *arguments):
            raise self._plan._failure()


def _view(spec: TensorSpec) -> View:
    return View(spec.name, spec.dtype, spec.shape, nbytes=spec.nbytes)


def _array(spec: TensorSpec) -> np.ndarray:
    assert spec.shape is not None
    return np.ndarray(spec.shape, numpy_dtype(spec.dtype), aligned_empty(spec.nbytes))


def _pointers(arrays: Sequence[np.ndarray | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(None if array is None else address(array) for array in arrays))
