"""A loaded model, ready to run with or without a schedule."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from iosched.jobs.loading.plan import opened_plan, path_in
from iosched.jobs.run import Executor, open_executor
from iosched.jobs.schedule_selection import for_batch
from iosched.models.errors import ClosedError, InvalidScheduleError, UsageError
from iosched.models.graph import TensorSpec
from iosched.models.load import read_unbound
from iosched.models.model import Model
from iosched.models.source import Source, StrPath
from iosched.runtime.inputs import as_specified, check_names, numpy_dtype
from iosched.runtime.plan_files import PlanInterface, PlanModel
from iosched.scheduler.batch_schedules import read_schedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule

T = TypeVar("T")

_PLAIN = (list, tuple, int, float)


class LoadedModel:
    """A model that is ready to run, until it is closed; also a context manager.

    Several threads may call it. Runs on all cores follow one another; `in_flight` is the number of concurrent runs.
    """

    def __init__(
        self, model: Model, document: ScheduleDocument | None, *, device: str = "auto", threads: int | None = None
    ) -> None:
        """Makes `model` ready, as `open_executor` does.

        Raises:
            InvalidScheduleError: the schedule was made for another structure, shape or type.
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device is not attached, or onnxruntime is not installed.
        """
        executor = open_executor(model, document, device=device, threads=threads)
        outputs = tuple(model.graph.tensor[name] for name in model.graph.outputs)
        self._take(executor, model.name, model.graph.inputs, outputs, lambda: (model, document))

    @classmethod
    def of_plan(
        cls,
        executor: Executor,
        name: str,
        interface: PlanInterface,
        read: Callable[[], tuple[Model, ScheduleDocument | None]],
    ) -> Self:
        """Takes a program of a plan file; `read` reads the model when it is first asked for."""
        found = cls.__new__(cls)
        found._take(executor, name, interface.inputs, interface.outputs, read)
        return found

    def _take(
        self,
        executor: Executor,
        name: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        read: Callable[[], tuple[Model, ScheduleDocument | None]],
    ) -> None:
        self._executor, self._name, self._inputs, self._outputs = executor, name, inputs, outputs
        self._specs = {spec.name: spec for spec in inputs}
        self._expected = tuple((spec.name, spec.shape, numpy_dtype(spec.dtype)) for spec in inputs if spec.is_static)
        self._read = read
        self._runs = _Runs()

    @cached_property
    def _source(self) -> tuple[Model, ScheduleDocument | None]:
        return self._read()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def model(self) -> Model:
        """The model as it was read."""
        return self._source[0]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, type and shape of each input."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, type and shape of each output; the shape is None if known only after a run."""
        return self._outputs

    @property
    def document(self) -> ScheduleDocument | None:
        """The schedule file that the model runs by, including how it was found; None if it has none."""
        return self._source[1]

    @property
    def schedule(self) -> Schedule | None:
        """The schedule in that file: blocks of stages of groups of operators."""
        return None if self.document is None else self.document.schedule

    @property
    def description(self) -> str:
        """The executor of the model, and its number of cores."""
        return self._executor.description

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how the model runs; complete only after a run."""
        return self._executor.notes

    @property
    def is_scheduled(self) -> bool:
        """Whether the model runs by a schedule."""
        return self._executor.by == "schedule" and self.document is not None

    @property
    def is_on_gpu(self) -> bool:
        """Whether a GPU runs the model."""
        return self._executor.on_device is not None

    @property
    def in_flight(self) -> int:
        """Number of concurrent runs; further callers wait. Plain onnxruntime runs all of them."""
        return self._executor.in_flight

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs the model once. The results are new arrays.

        Args:
            inputs: by name, arrays of exactly the type and shape in `self.inputs`, or nested lists of numbers.

        Returns:
            The outputs by their names; sequences and maps as onnxruntime returns them.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape; or the model is closed.
            ExecutionError: a kernel fails.
        """
        arrays = self._arrays(inputs)
        self._runs.begin()
        try:
            return self._executor.run(arrays)
        finally:
            self._runs.finish()

    def _arrays(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as the executor takes them; skips checks if they already are."""
        arrays: dict[str, Any] = {}
        for name, shape, dtype in self._expected:
            if name not in inputs:
                break
            array = inputs[name]
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                break
            arrays[name] = array if array.flags.c_contiguous else np.asarray(array, order="C")
        if len(arrays) == len(inputs) == len(self._specs):
            return arrays
        check_names(inputs, self._specs)
        return {name: _array(spec, inputs[name]) for name, spec in self._specs.items()}

    def close(self) -> None:
        """Waits for runs of other threads, and frees sessions, buffers, threads and cores. May be called again."""
        if self._runs.end():
            self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LoadedModel {self.name!r}: {self.description}>"


class _Runs:
    """Counts runs of all threads, until no more may begin."""

    def __init__(self) -> None:
        self._ended = Condition()
        self._going: deque[None] = deque()  # appending and popping are atomic, and faster than a lock
        self._is_closed, self._pid = False, os.getpid()

    def begin(self) -> None:
        """A run begins. Raises a UsageError if no more may."""
        self._going.append(None)
        if self._is_closed:
            self.finish()
            raise ClosedError("this model is closed: load it again")

    def finish(self) -> None:
        """A run is over, or did not begin."""
        self._going.pop()
        if self._is_closed:  # `end` may wait for the last run
            with self._ended:
                self._ended.notify_all()

    def end(self) -> bool:
        """Waits for running runs; returns True in the first call, but not in a forked child, which has no threads."""
        if os.getpid() != self._pid:
            self._is_closed = True
            return False
        with self._ended:
            is_first, self._is_closed = not self._is_closed, True
            self._ended.wait_for(lambda: not self._going)
            return is_first


def load(
    source: Source | Model,
    *,
    schedule: ScheduleDocument | StrPath | None = None,
    device: str = "auto",
    threads: int | None = None,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    strict: bool = False,
) -> LoadedModel:
    """Loads a model and makes it ready to run, as `iosched run` does.

    An optimized model runs in the way that `optimize` found fastest, any other on plain onnxruntime or, on a GPU that
    `device` names, one operator after another.

    >>> with iosched.load("model.iosched.onnx", threads=1) as model:
    ...     outputs = model.run({"x": np.ones((1, 8, 6, 6), np.float32)})
    >>> {name: array.shape for name, array in outputs.items()}
    {'y': (1, 16, 6, 6)}

    Args:
        source: a path, also of a folder from `export`, the bytes of a file, or a model that was loaded before.
        schedule: a schedule, or the path of a schedule file, instead of the one inside the model.
        device: "auto", which is the kind of device that the schedule was made on, "cpu", or "cuda[:N]".
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        batch_size: the first dimension of every input, if the file leaves it open.
        input_shapes: full shapes of inputs by name, if the file leaves them open.
        strict: whether to fail where the model has no plan file that fits, instead of preparing it again.

    Raises:
        ExecutionError: with `strict`, the plan file does not fit.
        InvalidModelError: the file is no model that can be run, or a dimension stays open.
        InvalidScheduleError: the schedule is none, or was made for another structure, shape or type.
        DeviceError: the device is not attached, or onnxruntime is not installed.
        UsageError: `batch_size` or `input_shapes` do not fit the model, it is for several batch sizes and none is
            given, or there is no such device.
    """
    source = path_in(source)

    def read_again() -> tuple[Model, ScheduleDocument | None]:
        return read_with_document(source, schedule, batch_size=batch_size, input_shapes=input_shapes)

    plan = None if schedule is not None else opened_plan(source, device=device, threads=threads, strict=strict)
    if plan is not None:
        shapes = None if batch_size is None and input_shapes is None else read_again()[0].bindings
        if (found := of_plan(plan, source, read_again, shapes)) is not None:
            return found
        plan.close()
        if strict:
            raise UsageError("the plan has no program for these input shapes")
    model, document = read_again()
    return LoadedModel(model, document, device=device, threads=threads)


def of_plan(
    plan: PlanModel,
    source: Source | Model,
    read: Callable[[], tuple[Model, ScheduleDocument | None]],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> LoadedModel | None:
    """The program of a plan for these shapes, or those of the model; closing it closes the plan. None without one."""
    number = plan.number_of(shapes)
    if number is None or not isinstance(source, str | os.PathLike):
        return None
    executor = replace(plan.executor(number), frees=plan.close)
    return LoadedModel.of_plan(executor, Path(source).stem, plan.programs[number], read)


def read_with_document(
    source: Source | Model,
    schedule: ScheduleDocument | StrPath | None = None,
    *,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[Model, ScheduleDocument | None]:
    """The model, and the schedule that is given or inside it; raises as `load`."""
    model = read(source, batch_size=batch_size, input_shapes=input_shapes)
    return model, _document(model, schedule)


def read(
    source: Source | Model,
    *,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    """The model from a path or bytes, or the given one.

    Raises:
        InvalidModelError: the file is no model that can be run, or a dimension stays open.
        UsageError: the shapes do not fit the model, it is loaded and so has its shapes, or it is for several batch
            sizes and none is given.
        TypeError: it is none of these.
    """
    if isinstance(source, Model):
        if batch_size is not None or input_shapes is not None:
            raise UsageError("a loaded model has fixed shapes: pass batch_size and input_shapes to load_model instead")
        return source
    if not isinstance(source, str | bytes | os.PathLike):
        raise TypeError(f"a model must be a path or bytes, not {type(source).__name__}")
    unbound = read_unbound(source)
    if unbound.schedules_json is not None and batch_size is None and input_shapes is None:
        raise UsageError(
            f"{unbound.name} has schedules for several batch sizes: select one with batch_size=N, or load all"
            " with iosched.load_batches or iosched.load_any"
        )
    return unbound.bound(batch_size=batch_size, input_shapes=input_shapes)


def _document(model: Model, given: ScheduleDocument | StrPath | None) -> ScheduleDocument | None:
    if isinstance(given, ScheduleDocument):
        return given
    if given is None and model.schedule_json is None:
        return None
    found = read_file(Path(given), read_schedules) if given is not None else read_schedules(model.schedule_json or "")
    return found if isinstance(found, ScheduleDocument) else for_batch(found, model).document


def read_file(path: Path, parse: Callable[[bytes], T]) -> T:
    """Parses a file.

    Raises:
        InvalidScheduleError: it cannot be read, or is invalid.
    """
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise InvalidScheduleError(f"{path}: {error.strerror}: check the path") from None
    except InvalidScheduleError as error:
        raise InvalidScheduleError(f"{path}: {error}") from None


def _array(spec: TensorSpec, given: Any) -> Any:
    """Checks an input, unless it is a string, sequence or map."""
    if not spec.is_static:
        return given
    if isinstance(given, _PLAIN):
        given = _numbers(spec, given)
    return as_specified(spec, {spec.name: given})


def _numbers(spec: TensorSpec, given: Any) -> np.ndarray:
    """Python numbers in the type of the input, or in numpy's type if the conversion would lose information."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise UsageError(f"input {spec.name!r}: its lists have different lengths") from None
    if array.dtype.kind not in "biuf":
        return array
    with np.errstate(invalid="ignore"):
        found = array.astype(numpy_dtype(spec.dtype))
    return array if found.dtype.kind in "biu" and not np.array_equal(found, array) else found
