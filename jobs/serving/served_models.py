"""Several models that are ready for separate requests, and share the cores of this process."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from iosched.jobs.loading.batches import LoadedBatches
from iosched.jobs.loading.loaded_model import LoadedModel, read_with_document
from iosched.jobs.loading.plan import path_in
from iosched.jobs.run import users_level, warn_of_other_device
from iosched.jobs.serving.core_pool import CorePool
from iosched.jobs.serving.dispatcher import blocks_of
from iosched.jobs.serving.policy import ServingPolicy
from iosched.jobs.serving.policy_file import adapted, read_policy
from iosched.models.dynamic_batch import DynamicBatchModel
from iosched.models.errors import ClosedError, ExecutionError, IoschedError, OtherDeviceWarning, UsageError
from iosched.models.load import read_unbound
from iosched.models.model import Model
from iosched.models.source import Source, StrPath
from iosched.profiler.devices.resolve import resolve
from iosched.runtime.executor import Executor
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.plan_files import PlanInterface
from iosched.runtime.shared_cores import Block, SharesCores
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import fitted

Served = LoadedModel | LoadedBatches


class ServedModels:
    """Models that serve requests of several threads, until closed; also a context manager.

    A request runs on the calling thread and on as many free cores as `policy` gives it; it waits if none is free.
    """

    def __init__(self, policy: ServingPolicy | None = None, *, threads: int | None = None) -> None:
        """Take the cores.

        Args:
            policy: how requests share them.
            threads: the number of cores; by default all that affinity and quota allow.
        """
        device = resolve("cpu")
        assert isinstance(device, SharesCores)
        self._cores = device.shared_cores(threads)
        self._policy = policy or ServingPolicy()
        if not self._cores.overlaps:
            self._policy = replace(self._policy, overlap_ratio=None)
        self._pool = CorePool(self.cores, self._policy)
        self._models: dict[str, Served] = {}
        self._changing = threading.Lock()  # opening a model takes seconds
        self._is_closed, self._pid = False, os.getpid()

    @property
    def models(self) -> Mapping[str, Served]:
        """The models by name."""
        return dict(self._models)

    @property
    def cores(self) -> int:
        """The number of cores that they share."""
        return self._cores.count

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the cores."""
        return self._cores.notes

    def run(self, name: str, inputs: Mapping[str, Any], timeout: float | None = None) -> dict[str, np.ndarray]:
        """Run a model once, as `LoadedModel.run` does.

        Args:
            timeout: seconds that the request may wait for a core; a running request is not interrupted.

        Raises:
            BusyError: too many requests of the model wait, or this one waited too long.
            UsageError: there is no such model, the inputs do not fit it (no core is taken then), or it is closed.
            ExecutionError: a kernel fails, which affects no other request; or the process has forked since.
        """
        self._check_process()
        while True:
            model = self._named(name)
            try:
                with self._pool.limit(timeout):
                    return model.run(inputs)
            except ClosedError:
                if self._models.get(name) is model:
                    raise

    def add(self, name: str, source: Source | Model) -> None:
        """Open a model, while requests of the others are served.

        Raises:
            UsageError: there is one of this name.
            Errors of `iosched.load_any`.
        """
        with self._changing:
            self._check_open()
            if name in self._models:
                raise UsageError(f"there is a model {name!r} already: use replace")
            self._models[name] = self._opened(name, source)

    def replace(self, name: str, source: Source | Model) -> None:
        """Open another model of this name; requests that have arrived finish on the old one, which is then closed.

        Raises:
            Errors of `add`; UsageError if there is no model of this name.
        """
        with self._changing:
            self._check_open()
            old = self._named(name)
            self._models[name] = self._opened(name, source)
        old.close()

    def remove(self, name: str) -> None:
        """Accept no more requests of a model, and close it after those that have arrived.

        Raises:
            UsageError: there is no model of this name.
        """
        with self._changing:
            self._named(name)
            old = self._models.pop(name)
        old.close()

    def close(self, *, drain: bool = True) -> None:
        """Accept no more requests, and close the models after those that run. May be called again.

        Args:
            drain: whether waiting requests run; otherwise they raise a `UsageError`.
        """
        if os.getpid() != self._pid:
            return
        with self._changing:
            self._is_closed = True
            if not drain:
                self._pool.refuse_waiting(_CLOSED)
            models, self._models = self._models, {}
            for each in models.values():
                each.close()
            self._pool.wait_until_idle()
            self._cores.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(drain=kind is None)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ExecutionError("the models were opened before the process forked: open them in the child")

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise UsageError(_CLOSED)

    def _named(self, name: str) -> Served:
        found = self._models.get(name)
        if found is not None:
            return found
        self._check_open()
        raise UsageError(f"there is no model {name!r}: there are {', '.join(map(repr, self._models)) or 'none'}")

    def _opened(self, name: str, source: Source | Model) -> Served:
        if isinstance(source, Model):
            return self._loaded(name, *read_with_document(source))
        source = path_in(source)
        unbound = read_unbound(source)
        if unbound.schedules_json is None:
            return self._loaded(name, *read_with_document(unbound.bound()))
        schedules = BatchSchedules.from_json(unbound.schedules_json)
        model = DynamicBatchModel(unbound, schedules.inputs)
        found = LoadedBatches(model, schedules, opens=lambda model, document: self._loaded(name, model, document))
        found.open(*schedules.batch_sizes)
        return found

    def _loaded(self, name: str, model: Model, document: ScheduleDocument | None) -> LoadedModel:
        if document is not None:
            document = fitted(document, model)
            warn_of_other_device(document, "cpu")
        sizes = self._policy.of(name).sizes(self.cores)
        blocks = [block for size in sizes for block in blocks_of(size, self.cores)]
        blocks += [] if self._policy.overlap_ratio is None else [self._pool.shared]
        runnable = _OnSharedCores(name, self._pool, self._cores.executors(model, document, blocks))
        widest = next(iter(runnable.on.values()))
        executor = Executor(
            runnable, widest.description, lambda: (*widest.notes, *self.notes), in_flight=self.cores, by=widest.by
        )
        outputs = tuple(model.graph.tensor[name] for name in model.graph.outputs)
        self._pool.opened(name, runnable.run_s(model))
        found = (model, document)
        return LoadedModel.of_plan(executor, model.name, PlanInterface(model.graph.inputs, outputs), lambda: found)


def serve_together(
    models: Mapping[str, Source | Model] | StrPath, policy: ServingPolicy | None = None, *, threads: int | None = None
) -> ServedModels:
    """Open several models, optimized or not, that serve separate requests and share the cores of this process.

    >>> models = {"one": "model.iosched.onnx", "two": iosched.load_model("model.onnx", batch_size=1)}
    >>> with iosched.serve_together(models) as served:
    ...     outputs = served.run("one", {"x": np.ones((1, 8, 6, 6), np.float32)}, timeout=1.0)
    >>> {name: array.shape for name, array in outputs.items()}
    {'y': (1, 16, 6, 6)}

    Args:
        models: by name, the path of a model, of a folder from `export`, its bytes, or a loaded model; or the path of a
            file from `iosched batch --requests`, which names models and a policy.
        policy: how requests share the cores.
        threads: the number of cores; by default all that affinity and quota allow.

    Raises:
        InvalidScheduleError: the file is for other models.
        Errors of `iosched.load_any`.

    Warns:
        OtherDeviceWarning: the file was made on another machine.
    """
    if isinstance(models, str | os.PathLike):
        file = read_policy(Path(models))
        models = file.paths(Path(models))
        fitting, remark = adapted(file, resolve("cpu").info, threads)
        if policy is None and remark is not None:
            warnings.warn(remark, OtherDeviceWarning, stacklevel=users_level())
        policy = policy or fitting
    served = ServedModels(policy, threads=threads)
    try:
        for name, source in models.items():
            served.add(name, source)
    except BaseException:
        served.close()
        raise
    return served


_ROUNDS = 3
_CLOSED = "the models are closed: open them again"


@dataclass(eq=False)
class _OnSharedCores:
    """One model, with an executor for each block of cores; a `Runnable`."""

    name: str
    pool: CorePool
    on: Mapping[Block, Executor]

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        with self.pool.cores(self.name) as block:
            return self.on[block].run(inputs)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        with self.pool.cores(self.name) as block:
            return self.on[block].time(inputs, repeats)

    def run_s(self, model: Model) -> Mapping[int, float]:
        """The shortest of a few runs on each number of cores, after one on each block to start its threads.

        Empty for inputs that cannot be random, or that the model refuses.
        """
        with suppress(IoschedError):
            inputs = random_inputs(model.graph.inputs)
            for executor in self.on.values():
                executor.run(inputs)
            own = {len(block): executor for block, executor in self.on.items() if block != self.pool.shared}
            rounds = [
                {size: executor.time(inputs, 1)[0] / 1e6 for size, executor in own.items()} for _ in range(_ROUNDS)
            ]
            return {size: min(each[size] for each in rounds) for size in own}
        return {}

    def close(self) -> None:
        for executor in self.on.values():
            executor.close()
