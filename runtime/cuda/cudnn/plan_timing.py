"""Times cuDNN plans of one kernel, interleaved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.cuda.cudnn.chooser import CudnnPlan
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import Lanes, elapsed_each_us, elapsed_us

SLOW_FACTOR = 1.3
SLOW_MARGIN_US = 50.0
"""A plan is skipped if its first run takes this factor and margin longer than the best."""

_ROUNDS = 5
_LAUNCHES = 3
_COPIES = 10
_GRAPH_US = 200.0
"""Target latency of a captured graph of runs: longer than a launch. All plans have the same number of copies, so that
gaps between graphs affect them equally."""


@dataclass(frozen=True, eq=False)
class CudnnPlanTimer:
    """Times plans on the first lane, all on the same tensors.

    Attributes:
        trying: context for the first runs of a plan, which may end the process.
    """

    driver: Driver
    lanes: Lanes
    addresses: Sequence[int]
    trying: Callable[[CudnnPlan], AbstractContextManager[None]] = lambda _: nullcontext()

    def latencies_us(self, plans: Sequence[CudnnPlan]) -> list[float]:
        """Latency of each plan: median over interleaved rounds, so that a rising GPU clock affects all plans equally.

        Infinite where a plan cannot run or be captured, its workspace does not fit, or its first run is far too slow.

        Raises:
            DeviceLostError: the GPU is lost.
        """
        workspace, nbytes = self._workspace(plans)
        try:
            return self._timed(plans, workspace, nbytes)
        finally:
            self.driver.synchronize(self.lanes.origin)  # the workspace and the tensors are freed next

    def _timed(self, plans: Sequence[CudnnPlan], workspace: Memory, nbytes: int) -> list[float]:
        best_us, ready = math.inf, {}
        for index, plan in enumerate(plans):
            if plan.workspace_nbytes <= nbytes:
                run = _PlanRun(plan, self.addresses, workspace)
                once_us = self._tried(partial(self._once_us, run))
                best_us = min(best_us, once_us)
                ready[index] = (run, once_us)
        limit_us = SLOW_FACTOR * best_us + SLOW_MARGIN_US
        copies = max(1, min(_COPIES, math.ceil(_GRAPH_US / max(best_us, 1.0))))
        timers = {index: self._repeated(run, copies) for index, (run, once_us) in ready.items() if once_us < limit_us}
        rounds = [{index: self._tried(timer) for index, timer in timers.items()} for _ in range(_ROUNDS)]
        found = {index: median(each[index] for each in rounds[1:]) for index in timers}
        return [found.get(index, math.inf) for index in range(len(plans))]

    def _workspace(self, plans: Sequence[CudnnPlan]) -> tuple[Memory, int]:
        for nbytes in sorted({plan.workspace_nbytes for plan in plans} - {0}, reverse=True):
            try:
                return self.driver.allocate(nbytes), nbytes
            except DeviceError:
                continue
        return self.driver.allocate(1), 0

    def _once_us(self, run: _PlanRun) -> float:
        """Microseconds of the second run: the first loads lazy state."""
        with self._first_runs(run.plan):
            run(self.lanes.origin)
            self.driver.synchronize(self.lanes.origin)
            return elapsed_us(self.driver, self.lanes.origin, partial(run, self.lanes.origin))

    @contextmanager
    def _first_runs(self, plan: CudnnPlan) -> Iterator[None]:
        """Raises if the GPU is lost: cuDNN reports that like the failure of a single plan."""
        with self.trying(plan):
            try:
                yield
            except (ExecutionError, DeviceError):
                self.driver.synchronize(self.lanes.origin)
                raise

    def _repeated(self, run: _PlanRun, copies: int) -> Callable[[], float]:
        """Measures one run in a captured graph of `copies`; the first launch waits for the host and is left out."""
        origin = self.lanes.origin

        def launch() -> None:
            for _ in range(copies):
                run(origin)

        try:
            with self._first_runs(run.plan):
                run(origin)  # a new stream gets its handle before the capture
                self.driver.synchronize(origin)
                graph = self.lanes.capture(origin, launch)
                self.driver.launch_graph(graph, origin)
                self.driver.synchronize(origin)
        except (ExecutionError, DeviceError):
            return lambda: math.inf

        def measured() -> float:
            found = elapsed_each_us(self.driver, origin, lambda: self.driver.launch_graph(graph, origin), _LAUNCHES)
            return median(found[1:]) / copies

        return measured

    def _tried(self, measured: Callable[[], float]) -> float:
        try:
            return measured()
        except (ExecutionError, DeviceError):
            return math.inf


@dataclass(frozen=True, eq=False)
class _PlanRun:
    plan: CudnnPlan
    addresses: Sequence[int]
    workspace: Memory

    def __call__(self, stream: Any) -> None:
        self.plan.execute(self.addresses, self.workspace.ptr, stream)
