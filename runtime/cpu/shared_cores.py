"""Cores of this CPU on which several models run at the same time, each on a block of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np

from iosched.models.model import Model
from iosched.runtime.cores import allowed_cpus, is_time_shared
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lane_cpus import LaneCpus, on_cpus, unpinned
from iosched.runtime.cpu.native import NativeRuntime
from iosched.runtime.cpu.remarks import core_remarks
from iosched.runtime.cpu.shipped import is_by_schedule, reference_settings, shipped_executor
from iosched.runtime.executor import Executor, Runnable
from iosched.runtime.inputs import Arrays
from iosched.runtime.memory import check_fits
from iosched.runtime.reference import Reference
from iosched.runtime.shared_cores import Block
from iosched.scheduler.document import ScheduleDocument


class CpuCores:
    """See `SharedCores`. Each block of cores has its own threads and arena, on which all models run."""

    def __init__(self, count: int) -> None:
        """Take `count` cores, as `LaneCpus` does."""
        self._claimed = LaneCpus(count)
        self._cpus = self._claimed.of(count)
        self._runtimes: dict[Block, NativeRuntime] = {}
        self._lock = Lock()
        self._weights: WeakValueDictionary[object, np.ndarray] = WeakValueDictionary()

    @property
    def count(self) -> int:
        """Number of cores."""
        return self._claimed.lanes

    @property
    def overlaps(self) -> bool:
        """False under a quota, which an extra thread may exhaust, and on cores that other processes may use."""
        return not is_time_shared() and (self.count > 1 or len(allowed_cpus()) == 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the cores."""
        return core_remarks(self._claimed)

    def executors(
        self, model: Model, document: ScheduleDocument | None, blocks: Sequence[Block]
    ) -> Mapping[Block, Executor]:
        """See `SharedCores`."""
        check_fits(model.graph)
        if document is not None and is_by_schedule(document) and (found := self._by_schedule(model, document, blocks)):
            return found
        return self._shipped(model, document, blocks)

    def close(self) -> None:
        """Free threads and release the processors. May be called again."""
        for runtime in self._runtimes.values():
            runtime.close()
        self._claimed.close()

    def _by_schedule(
        self, model: Model, document: ScheduleDocument, blocks: Sequence[Block]
    ) -> Mapping[Block, Executor]:
        """Executors of the schedule; empty if no plan can be made for the model."""
        found: dict[Block, Executor] = {}
        sharing: NativeRuntime | None = None
        for size in dict.fromkeys(map(len, blocks)):
            own = [block for block in blocks if len(block) == size]
            with CpuBackend(model, lanes=size, units=document.units) as backend:
                if not backend.is_supported():
                    return {}
                backend.share_weights(self._weights)
                hosts: list[tuple[NativeRuntime | None, Sequence[int]]] = []
                for block in own:
                    if backend.is_native:
                        sharing = NativeRuntime(sharing, host=self._runtime(block))
                    hosts.append((sharing, self._lane_cpus(block)))
                compiled = backend.compile_on(document.schedule, hosts)
            kind = "compiled" if backend.is_native else "Python"
            description = f"iosched, {size} threads, {kind} executor"
            for block, each in zip(own, compiled, strict=True):
                is_pinned = block != (self.count,)  # by the executor
                found[block] = Executor(each if is_pinned else _Pinned(each, self._cpus), description)
        return found

    def _shipped(
        self, model: Model, document: ScheduleDocument | None, blocks: Sequence[Block]
    ) -> Mapping[Block, Executor]:
        found: dict[Block, Executor] = {}
        single: Executor | None = None
        opens = _on_openvino if document is not None and document.is_on_openvino else _on_onnxruntime
        for block in blocks:
            cpus, opened = self._cpus_of(block), single if len(block) == 1 else None
            if opened is None or opened.by != "reference":  # a session of one thread starts no threads
                opened = opens(model, document, len(block), cpus)
            single = opened if len(block) == 1 else single
            callers = cpus[:1] if opens is _on_onnxruntime and block != (self.count,) else cpus
            found[block] = replace(opened, runnable=_Pinned(opened.runnable, callers))
        return found

    def _runtime(self, block: Block) -> NativeRuntime:
        with self._lock:
            if block not in self._runtimes:
                self._runtimes[block] = NativeRuntime()
            return self._runtimes[block]

    def _lane_cpus(self, block: Block) -> tuple[int, ...]:
        return unpinned(1) if block == (self.count,) else self._cpus_of(block)

    def _cpus_of(self, block: Block) -> tuple[int, ...]:
        return self._cpus if block == (self.count,) else tuple(self._cpus[core] for core in block)


def _on_openvino(model: Model, document: ScheduleDocument | None, lanes: int, cpus: Sequence[int]) -> Executor:
    with on_cpus(cpus):  # the library's threads inherit the processors
        return shipped_executor(model, document, lanes)


def _on_onnxruntime(model: Model, document: ScheduleDocument | None, lanes: int, cpus: Sequence[int]) -> Executor:
    """A session for a caller on the first processor; the session's threads are on the others.

    A thread that may run on the caller's processor often wakes up there after a pause, and then waits until the system
    moves it.
    """
    settings = replace(reference_settings(document, lanes), binds_threads=False)
    with on_cpus(cpus[1:] or cpus):
        session = Reference(model, settings, keeps_spinning=False)  # its idle threads would disturb other models
    return Executor(session, f"onnxruntime, {settings.description}", by="reference")


@dataclass(frozen=True, eq=False)
class _Pinned:
    """A model whose calling thread runs on its processors."""

    runnable: Runnable
    cpus: tuple[int, ...]

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        with on_cpus(self.cpus):
            return self.runnable.run(inputs)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        with on_cpus(self.cpus):
            return self.runnable.time(inputs, repeats)

    def close(self) -> None:
        self.runnable.close()
