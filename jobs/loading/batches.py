"""A model that is loaded with schedules for several batch sizes, and runs at whatever batch size its inputs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx

from iosched.jobs.loading.loaded_model import LoadedModel, load, of_plan, read_file, read_with_document
from iosched.jobs.loading.plan import opened_plan, path_in
from iosched.jobs.schedule_selection import for_batch
from iosched.models.dynamic_batch import DynamicBatchModel, declared
from iosched.models.errors import ClosedError, InvalidScheduleError, UsageError
from iosched.models.graph import DynamicBatchSpec
from iosched.models.load import read_unbound
from iosched.models.model import Model
from iosched.models.source import Source, StrPath
from iosched.runtime.plan_files import PlanModel
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument


@dataclass(eq=False)
class _Opened:
    model: LoadedModel
    users: int = 0


class LoadedBatches:
    """A model that is ready to run at any batch size, until it is closed; also a context manager.

    A batch size is opened at its first run, with its own schedule or the nearest one. Each has its own packed weights
    and buffers; the file's weights are read once. Beyond `most_open`, the least recently used one is closed. Several
    threads may call it.
    """

    def __init__(
        self,
        model: DynamicBatchModel,
        schedules: BatchSchedules,
        *,
        device: str = "auto",
        threads: int | None = None,
        most_open: int | None = None,
        plan: PlanModel | None = None,
        opens: Callable[[Model, ScheduleDocument], LoadedModel] | None = None,
    ) -> None:
        """Takes a model and its schedules; nothing is opened yet.

        Args:
            schedules: schedules of this model, or of one of the same structure.
            device: "auto", which is the kind of device that the schedules were made on, "cpu", or "cuda[:N]".
            most_open: the number of batch sizes that stay open; by default one more than there are schedules.
            plan: an open plan file of this model, which runs the batch sizes that it has.
            opens: opens the model at one batch size; default: on `device` and `threads`.
        """
        self._opens = opens or (lambda model, document: LoadedModel(model, document, device=device, threads=threads))
        self._model, self._schedules, self._plan = model, schedules, plan
        self._most_open = most_open or len(schedules.by_size) + 1
        self._lock, self._is_closed = Lock(), False
        self._opening = Lock()  # opening a batch size takes seconds and all cores: one at a time, without `_lock`
        self._opened: dict[int, _Opened] = {}  # the most recently run one is last

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def model(self) -> DynamicBatchModel:
        """The model as it was read."""
        return self._model

    @property
    def schedules(self) -> BatchSchedules:
        """The schedules."""
        return self._schedules

    @property
    def inputs(self) -> tuple[DynamicBatchSpec, ...]:
        """Name, type and shape of each input."""
        return declared(self.proto.graph.input)

    @property
    def outputs(self) -> tuple[DynamicBatchSpec, ...]:
        """Name, type and shape of each output; the shape is None if known only after a run."""
        return declared(self.proto.graph.output)

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model with its batch dynamic."""
        return self._model.proto(self._schedules.batch_sizes)

    @property
    def opened(self) -> tuple[int, ...]:
        """The open batch sizes, the most recently run one last."""
        with self._lock:
            return tuple(self._opened)

    @property
    def is_scheduled(self) -> bool:
        """Whether a schedule ships at any of the batch sizes."""
        return any(document.is_shipped for document in self._schedules.by_size.values())

    @property
    def is_on_gpu(self) -> bool:
        """Whether a GPU runs an open batch size."""
        with self._lock:
            return any(each.model.is_on_gpu for each in self._opened.values())

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs the model once, at the batch size of the inputs. The results are new arrays.

        Args:
            inputs: by name, arrays of exactly the type that the model expects, or nested lists of numbers.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape; or the model is closed.
            InvalidScheduleError: the schedules were made for another structure.
            InvalidModelError: the model cannot run at this batch size.
            DeviceError: the device is not attached, its memory is too small, or onnxruntime is not installed.
            ExecutionError: a kernel fails.
        """
        with self._using(self._batch_size(inputs)) as model:
            return model.run(inputs)

    def open(self, *batch_sizes: int) -> None:
        """Opens batch sizes before they are first run; of more than `most_open`, the last ones stay open.

        Raises:
            Errors of `run`, except those of inputs.
        """
        for batch_size in batch_sizes:
            with self._using(batch_size):
                pass

    def close(self) -> None:
        """Frees open batch sizes, each after its runs. May be called again."""
        with self._lock:
            self._is_closed = True
            idle = self._idle()
        for each in idle:
            each.model.close()
        if self._plan is not None and not self.opened:
            self._plan.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _batch_size(self, inputs: Mapping[str, Any]) -> int:
        for name, shape in self._model.inputs.items():
            for axis, dim in enumerate(shape):
                if not isinstance(dim, str) or name not in inputs:
                    continue
                given = np.shape(inputs[name])
                if len(given) == len(shape) and given[axis] > 0:
                    return int(given[axis])
                raise UsageError(f"input {name!r} has shape {given}, but the model expects {shape}")
        raise UsageError(f"no input with a batch dimension is given: pass {', '.join(self._model.inputs)}")

    @contextmanager
    def _using(self, batch_size: int) -> Iterator[LoadedModel]:
        """The model at this batch size, kept open meanwhile."""
        found = self._taken(batch_size)
        try:
            yield found.model
        finally:
            with self._lock:
                found.users -= 1
                idle = self._idle()
            for each in idle:
                each.model.close()

    def _taken(self, batch_size: int) -> _Opened:
        """Opens the model at this batch size if needed, and counts it as in use."""
        if (found := self._in_use(batch_size)) is not None:
            return found
        with self._opening:
            if (found := self._in_use(batch_size)) is not None:
                return found
            opened = self._open(batch_size)
            with self._lock:
                self._opened[batch_size] = opened
                opened.users += 1
                return opened

    def _in_use(self, batch_size: int) -> _Opened | None:
        with self._lock:
            if self._is_closed:
                raise ClosedError("this model is closed: load it again")
            found = self._opened.pop(batch_size, None)
            if found is not None:
                self._opened[batch_size] = found
                found.users += 1
            return found

    def _open(self, batch_size: int) -> _Opened:
        model = self._model.at(batch_size)
        document = for_batch(self._schedules, model).document
        plan = self._plan
        if plan is not None and (number := plan.number_of(model.bindings)) is not None:
            program = plan.programs[number]
            return _Opened(LoadedModel.of_plan(plan.executor(number), self.name, program, lambda: (model, document)))
        return _Opened(self._opens(model, document))

    def _idle(self) -> list[_Opened]:
        """Removes unused models beyond `most_open` and returns them to be closed."""
        most = 0 if self._is_closed else self._most_open
        sizes = [size for size, each in self._opened.items() if not each.users]
        return [self._opened.pop(size) for size in sizes[: max(len(self._opened) - most, 0)]]


def load_batches(
    source: Source,
    *,
    schedules: BatchSchedules | StrPath | None = None,
    device: str = "auto",
    threads: int | None = None,
    most_open: int | None = None,
    strict: bool = False,
) -> LoadedBatches:
    """Loads a model from `iosched optimize --batch-sizes`, to run at any batch size.

    Args:
        source: the path of a model whose batch is dynamic, or of a folder from `export`; or its bytes.
        schedules: schedules, or the path of a schedule file of version 2, instead of those in the model.
        device: "auto", which is the kind of device that the schedules were made on, "cpu", or "cuda[:N]".
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        most_open: the number of batch sizes that stay open; by default one more than there are schedules.
        strict: whether to fail where the model has no plan file that fits, instead of preparing it again.

    Raises:
        ExecutionError: with `strict`, the plan file does not fit.
        InvalidModelError: the file is no model that can be run.
        InvalidScheduleError: it has no schedules for several batch sizes, or they are broken.
    """
    source = path_in(source)
    unbound = read_unbound(source)
    plan = None if schedules is not None else opened_plan(source, device=device, threads=threads, strict=strict)
    if schedules is None:
        if unbound.schedules_json is None:
            raise InvalidScheduleError(
                "the model has no schedules for several batch sizes: load it with iosched.load, or create them with"
                " iosched.optimize_batches"
            )
        schedules = BatchSchedules.from_json(unbound.schedules_json)
    elif not isinstance(schedules, BatchSchedules):
        schedules = read_file(Path(schedules), BatchSchedules.from_json)
    model = DynamicBatchModel(unbound, schedules.inputs)
    return LoadedBatches(model, schedules, device=device, threads=threads, most_open=most_open, plan=plan)


def load_any(
    source: Source, *, device: str = "auto", threads: int | None = None, strict: bool = False
) -> LoadedModel | LoadedBatches:
    """Loads a model with `load_batches` if its file is for several batch sizes, else with `load`.

    Both types have `name`, `inputs`, `outputs`, `run` and `close`, and are context managers.

    Args:
        source: the path of a model, or of a folder from `export`; or its bytes.
        device: as `load` and `load_batches` take it.
        threads: likewise.
        strict: likewise.

    Raises:
        Errors of `load` and `load_batches`.
    """
    source = path_in(source)
    plan = opened_plan(source, device=device, threads=threads, strict=strict)
    if plan is not None and (found := of_plan(plan, source, lambda: read_with_document(source))) is not None:
        return found
    unbound = read_unbound(source)
    if unbound.schedules_json is None:
        return load(unbound.bound(), device=device, threads=threads)
    schedules = BatchSchedules.from_json(unbound.schedules_json)
    model = DynamicBatchModel(unbound, schedules.inputs)
    return LoadedBatches(model, schedules, device=device, threads=threads, plan=plan)
