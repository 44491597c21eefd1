"""Runs plan files through the C interface that `include/iosched_plan.h` describes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.graph import TensorSpec
from iosched.runtime.cpu.arrays import InputArrays, OutputArrays, address, aligned_empty, output_array
from iosched.runtime.cpu.kernels import DTYPE_NAME
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.library import api_base, compiled, missing, onnxruntime_path
from iosched.runtime.cpu.plan_file import plan_lanes
from iosched.runtime.cpu.remarks import core_remarks
from iosched.runtime.executor import Executor
from iosched.runtime.handle import Handle
from iosched.runtime.inputs import Arrays
from iosched.runtime.missing_dependencies import failure
from iosched.runtime.plan import View
from iosched.runtime.plan_files import PlanInterface

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
        ("checksum", ctypes.c_uint64),
        ("has_dynamic_batch", ctypes.c_int32),
    )


class OpenedPlan:
    """A plan file that is open; see `PlanModel`.

    Attributes:
        cpus: the processors of the lanes.
        has_dynamic_batch: whether the model's batch is dynamic, with a program for each batch size of a schedule.
    """

    def __init__(self, path: Path) -> None:
        """Open a plan.

        Raises:
            DeviceError: the compiled executor or onnxruntime is missing.
            ExecutionError: the plan is broken, or for another machine or onnxruntime.
        """
        library, onnxruntime = compiled(), onnxruntime_path()
        if library is None or onnxruntime is None:
            raise DeviceError(f"a plan cannot run: {missing()}")
        self._library = library
        lanes = plan_lanes(path)
        self.cpus = LaneCpus(lanes)
        cpus = (ctypes.c_int32 * lanes)(*self.cpus.of(lanes))
        options = _Options(ctypes.sizeof(_Options), cpus, lanes)
        pointer = library.iosched_plan_open(os.fsencode(path), api_base(onnxruntime), ctypes.byref(options))
        if not pointer:
            self.cpus.close()
            raise self._failure()
        self._handle = Handle(pointer, library.iosched_plan_close)
        first = self._described(0)
        self.lanes: int = first.n_lanes
        self.model_sha256: str = _text(first.model_sha256)
        self.checksum: int = first.checksum
        self.has_dynamic_batch = bool(first.has_dynamic_batch)
        self.programs = tuple(_interface(self._described(number)) for number in range(first.n_programs))

    def number_of(self, shapes: Mapping[str, tuple[int, ...]] | None) -> int | None:
        """See `PlanModel`."""
        if shapes is None:
            return None if self.has_dynamic_batch else 0
        known = ({spec.name: spec.shape for spec in each.inputs} for each in self.programs)
        return next((number for number, each in enumerate(known) if each == dict(shapes)), None)

    def executor(self, number: int) -> Executor:
        """See `PlanModel`."""
        description = f"iosched, {self.lanes} threads, plan file"
        return Executor(OpenedProgram(self, number), description, lambda: core_remarks(self.cpus))

    def close(self) -> None:
        """See `PlanModel`."""
        self._handle.close()
        self.cpus.close()

    def _described(self, program: int) -> _Description:
        found = _Description(size=ctypes.sizeof(_Description))
        if self._library.iosched_plan_describe(self._handle.pointer, program, ctypes.byref(found)):
            raise self._failure()
        return found

    def _failure(self) -> ExecutionError:
        return failure(self._library.iosched_plan_error().decode(errors="replace"))


def _interface(description: Any) -> PlanInterface:
    inputs = tuple(_spec(description.inputs[i]) for i in range(description.n_inputs))
    return PlanInterface(inputs, tuple(_spec(description.outputs[i]) for i in range(description.n_outputs)))


def _spec(tensor: Any) -> TensorSpec:
    shape = None if tensor.rank < 0 else tuple(tensor.shape[: tensor.rank])
    return TensorSpec(_text(tensor.name), DTYPE_NAME[tensor.type], shape)


def _text(content: bytes) -> str:
    """Decodes a text of the plan, which may be any bytes, so that different texts stay different."""
    return content.decode(errors="surrogateescape")


class OpenedProgram:
    """A program of an open plan; a `Runnable` until the plan is closed."""

    def __init__(self, plan: OpenedPlan, number: int) -> None:
        """Take a program of `plan`."""
        self._plan, self._number, self._library = plan, number, plan._library
        interface = plan.programs[number]
        self._outputs = interface.outputs
        known = [index for index, spec in enumerate(self._outputs) if spec.shape is not None]
        # Arguments of a run, created once: creating them takes a large part of a small model's run.
        self._sources = InputArrays([_view(spec) for spec in interface.inputs])
        self._known = OutputArrays([_view(self._outputs[index]) for index in known])
        self._places = tuple(known)
        self._targets = (ctypes.c_void_p * len(self._outputs))()
        self._lock = Lock()

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run once; the results are new arrays.

        Raises:
            ExecutionError: a kernel fails; the plan stays usable.
            UsageError: an input is missing, or has another type or shape.
        """
        with self._plan._handle.guarded_by(self._lock, _FORKED):
            kept = self._sources.bind(inputs)
            found = self._bound()
            if len(self._places) == len(self._outputs):
                self._call(self._library.iosched_plan_run, None, None)
            else:
                allocate = _ALLOCATE(partial(self._allocate, found))
                self._call(self._library.iosched_plan_run, ctypes.cast(allocate, ctypes.c_void_p), None)
                found = {spec.name: found[spec.name] for spec in self._outputs}
            del kept
            return found

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run; raises as `run`."""
        with self._plan._handle.guarded_by(self._lock, _FORKED):
            kept, found = self._sources.bind(inputs), self._bound()
            times_us = np.zeros(repeats)
            self._call(self._library.iosched_plan_time, repeats, address(times_us))
            del kept, found
        return tuple(times_us.tolist())

    def close(self) -> None:
        """Do nothing: the plan has other programs."""

    def _bound(self) -> dict[str, np.ndarray]:
        """New arrays for the outputs of known shape, which the next call fills."""
        found, addresses = self._known.take()
        for place, target in zip(self._places, addresses, strict=True):
            self._targets[place] = target
        return found

    def _allocate(
        self, found: dict[str, np.ndarray], _: int, output: int, shape: Any, rank: int, nbytes: int
    ) -> int | None:
        spec = self._outputs[output]
        array = found[spec.name] = output_array(_view(TensorSpec(spec.name, spec.dtype, tuple(shape[:rank]))))
        return address(array) if nbytes else address(aligned_empty(8))

    def _call(self, function: Any, *arguments: object) -> None:
        handle = self._plan._handle
        if not handle.close.alive:
            raise ValueError("the plan is closed")
        if function(handle.pointer, self._number, self._sources.pointers, self._targets, *arguments):
            raise self._plan._failure()


def _view(spec: TensorSpec) -> View:
    return View(spec.name, spec.dtype, spec.shape, nbytes=spec.nbytes)
