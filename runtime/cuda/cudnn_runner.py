"""cuDNN's plans on the streams of an attached GPU: which plan runs a kernel is found once, by timing all that build."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.cudnn_plans import Plan, PlanId, build_plans, rebuild
from iosched.runtime.cuda.device import load_cudnn
from iosched.runtime.cuda.driver import Driver, Memory
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.plan import View

MOST_PLANS = 12
BUILD_SECONDS = 5.0
_TRIALS = 7


def plan_key(kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> str:
    """What a choice of plan holds for: the kernel and how its tensors lie, whatever they are called."""
    views = [(view.dtype, view.shape, view.strides, view.offset % 16) for view in (*reads, *writes)]
    return hashlib.sha256(f"{kernel!r}{views}".encode()).hexdigest()[:24]


@dataclass(frozen=True, eq=False)
class RunningPlan:
    """A plan with the handles of the streams that may run it."""

    plan: Plan
    handles: Handles

    @property
    def workspace_nbytes(self) -> int:
        """Memory that it needs while it runs."""
        return self.plan.workspace_nbytes

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """Gives the stream the work."""
        self.plan.execute(addresses, workspace, self.handles.of(stream))


class Handles:
    """One cuDNN handle for each stream."""

    def __init__(self) -> None:
        """None yet."""
        self._cudnn = load_cudnn()
        self._of: dict[int, tuple[Any, Any]] = {}

    def of(self, stream: Any) -> Any:
        """The handle whose work goes to `stream`."""
        known = self._of.get(id(stream))
        if known is None:
            handle = self._cudnn.create_handle()
            self._cudnn.set_stream(handle=handle, stream=stream.ptr)
            known = self._of[id(stream)] = (handle, stream)  # the stream is kept, so that its id is not used again
        return known[0]


class PlanMemory(Protocol):
    """Where choices are kept beyond the process; keys are those of `plan_key`, values those of `str(PlanId)`."""

    def choice(self, key: str) -> str | None:
        """What was chosen before."""
        ...

    def choose(self, key: str, value: str) -> str:
        """Keeps a choice; answers the one that holds, which another process may have made."""
        ...


class PlanChoice:
    """Chooses plans for one GPU, the same for the same kernel and layout.

    Attributes:
        chosen: the plans chosen so far, by `plan_key`.
    """

    def __init__(self, driver: Driver, memory: PlanMemory) -> None:
        """Nothing is chosen yet, but for what `memory` knows.

        Raises:
            DeviceError: cuDNN is not installed.
        """
        self.chosen: dict[str, str] = {}
        self._memory = memory
        self._driver = driver
        self._stream = driver.new_stream()
        self._handles = Handles()
        self._plans: dict[str, Plan] = {}

    def __call__(self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> RunningPlan:
        """The plan for a kernel; the fastest of those that cuDNN builds, unless one is known.

        Raises:
            DeviceError: cuDNN offers none, or not the one that is known.
        """
        key = plan_key(kernel, reads, writes)
        if key not in self._plans:
            self._plans[key] = self._found(key, kernel, reads, writes)
            self.chosen[key] = str(self._plans[key].id)
        return RunningPlan(self._plans[key], self._handles)

    def _found(self, key: str, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> Plan:
        handle = self._handles.of(self._stream)
        known = self._memory.choice(key)
        if known is not None:
            return rebuild(kernel, reads, writes, handle, PlanId.parse(known))
        offer = build_plans(kernel, reads, writes, handle, at_most=MOST_PLANS, deadline_s=BUILD_SECONDS)
        if not offer.plans:
            raise DeviceError(f"cuDNN has no engine for {kernel}: {offer.refusal}")
        fastest = self._fastest(offer.plans, reads, writes)
        holds = self._memory.choose(key, str(fastest.id))
        if holds == str(fastest.id):
            return fastest
        return rebuild(kernel, reads, writes, handle, PlanId.parse(holds))

    def _fastest(self, plans: Sequence[Plan], reads: Sequence[View], writes: Sequence[View]) -> Plan:
        """The plan with the least median latency alone; one that fails to run is left out."""
        if len(plans) == 1:
            return plans[0]
        views = (*reads, *writes)
        memory = [self._scratch(view) for view in views]
        addresses = [each.ptr + view.offset % 16 for each, view in zip(memory, views, strict=True)]
        workspace = self._driver.allocate(max(plan.workspace_nbytes for plan in plans))
        timed = [(self._latency_us(plan, addresses, workspace.ptr), index) for index, plan in enumerate(plans)]
        return plans[min(timed)[1]]

    def _scratch(self, view: View) -> Memory:
        extent = view.nbytes
        if view.strides is not None and view.shape is not None:
            reach = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
            extent = max(extent, reach + view.nbytes)
        return self._driver.allocate(extent + 16)

    def _latency_us(self, plan: Plan, addresses: Sequence[int], workspace: int) -> float:
        driver, stream = self._driver, self._stream
        samples = []
        for _ in range(_TRIALS):
            start, end = driver.new_event(timing=True), driver.new_event(timing=True)
            driver.record(start, stream)
            try:
                plan.execute(addresses, workspace, self._handles.of(stream))
            except RuntimeError:  # an engine that was built and does not run is no candidate
                return float("inf")
            driver.record(end, stream)
            samples.append(driver.elapsed_us(start, end))
        return median(samples[1:])
