"""Finds the fastest cuDNN plans of an attached GPU by timing them once, and stores them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.cudnn.chooser import (
    FASTEST_ALONE,
    Choices,
    CudnnPlanCandidate,
    CudnnPlanNames,
    candidates_from_text,
    candidates_to_text,
    names_from_text,
    names_to_text,
    stage_key,
)
from iosched.runtime.cuda.cudnn.cudnn_graph import load_cudnn
from iosched.runtime.cuda.cudnn.guess import CudnnPlanGuess
from iosched.runtime.cuda.cudnn.plan_timing import CudnnPlanTimer
from iosched.runtime.cuda.cudnn.plans import (
    BuiltCudnnPlan,
    CudnnOffer,
    build_cudnn_plans,
    failures,
    load_cudnn_plan,
    rebuild_cudnn_plan,
)
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.failures import kept_if_lost, translated
from iosched.runtime.cuda.gpu.lanes import Lanes, synchronized_on_error
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.plan import View

MAX_BUILT = 12
BUILD_SECONDS = 5.0
MAX_KEPT = 4
MAX_WORKSPACE_NBYTES = 256 << 20
"""Each stream has a workspace for its largest plan; some plans need 900 MB."""

KEPT_WITHIN = 1.3
"""Plans that are slower alone by this factor are not tried in stages."""

_ORDINARY = 0x3C  # as float32 0.01, as float16 1.06: zeros and NaN may run faster than real data


def cudnn_plan_key(kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> str:
    """Key of a kernel on tensors of these layouts: equal where the same cuDNN plan fits."""
    views = [(view.dtype, view.shape, view.strides, view.offset % 16) for view in (*reads, *writes)]
    return hashlib.sha256(f"{kernel!r}{views}".encode()).hexdigest()[:24]


class CudnnPlanStore(Choices, Protocol):
    """Persistent cuDNN plans and choices."""

    def plan(self, key: str, name: str) -> bytes | None:
        """The serialized plan."""
        ...

    def keep_plan(self, key: str, name: str, content: bytes) -> None:
        """Stores a serialized plan."""
        ...


@dataclass(frozen=True, eq=False)
class _PlanCase:
    key: str
    kernel: CudnnKernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]


class FastestCudnnPlans:
    """Chooses plans for one GPU, the same for the same kernel and layout. See `CudnnPlanChooser`."""

    def __init__(
        self, driver: Driver, store: CudnnPlanStore, lanes: Lanes | None = None, handles: CudnnHandles | None = None
    ) -> None:
        """Raises DeviceError if cuDNN is not installed; plans are timed on the first of `lanes`."""
        self._replaced: list[str] = []
        self._fatal: dict[str, None] = {}
        self._large: dict[str, None] = {}
        self._store = store
        self._driver = driver
        self._lanes = lanes or Lanes(driver)
        self._handles = handles or CudnnHandles(driver)
        self._candidates: dict[str, tuple[CudnnPlanCandidate, ...]] = {}
        self._plans: dict[tuple[str, str], BuiltCudnnPlan] = {}
        self._stages: dict[str, CudnnPlanNames] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """See `CudnnPlanChooser`."""
        causes = (
            (self._replaced, "replaced because cuDNN cannot build them", " Optimize the model again."),
            (
                self._fatal,
                "skipped because they crashed the GPU or the process before",
                " `iosched profile clear` allows another try.",
            ),
            (self._large, f"skipped because they need more than {MAX_WORKSPACE_NBYTES >> 20} MiB of workspace", ""),
        )
        return tuple(
            f"cuDNN plans {cause}: {len(found)} (first: {next(iter(found))}).{hint}"
            for found, cause, hint in causes
            if found
        )

    def __call__(
        self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames = FASTEST_ALONE
    ) -> RunningCudnnPlan:
        """See `CudnnPlanChooser`. A known plan that cannot be built is replaced by the fastest alone or the best guess.

        Raises:
            DeviceError: cuDNN offers no plan, or none that runs.
        """
        case = _PlanCase(cudnn_plan_key(kernel, reads, writes), kernel, tuple(reads), tuple(writes))
        with self._driver.current():
            if case.key not in self._candidates:
                self._candidates[case.key] = self._ranked(case)
            candidates = self._candidates[case.key]
            plan = self._plan(case, names.get(case.key, candidates[0].name))
        return RunningCudnnPlan(case.key, plan, candidates, self._handles)

    def of_stage(self, signature: str) -> CudnnPlanNames | None:
        """See `CudnnPlanChooser`."""
        if signature not in self._stages:
            known = self._store.choice(stage_key(signature))
            if known is None:
                return None
            self._stages[signature] = names_from_text(known)
        return self._stages[signature]

    def keep(self, signature: str, names: CudnnPlanNames) -> CudnnPlanNames:
        """See `CudnnPlanChooser`."""
        holds = self._store.choose(stage_key(signature), names_to_text(names))
        self._stages[signature] = names_from_text(holds)
        return self._stages[signature]

    def _ranked(self, case: _PlanCase) -> tuple[CudnnPlanCandidate, ...]:
        known = candidates_from_text(self._store.choice(case.key) or "")
        if known:
            return known
        if not self._store.times:
            return (CudnnPlanCandidate(self._first_guess(case).name),)
        offer = self._offer(case, MAX_BUILT, self._guess(case).has_choice)
        timed = sorted(self._timed(case, offer.plans), key=lambda pair: pair[0])
        if math.isinf(timed[0][0]):
            raise DeviceError(f"no cuDNN engine runs {case.kernel} on this GPU")
        best = [pair for pair in timed if pair[0] <= timed[0][0] * KEPT_WITHIN][:MAX_KEPT]
        self._plans |= {(case.key, plan.name): plan for _, plan in best}
        self._store.keep_plan(case.key, best[0][1].name, best[0][1].serialize())
        found = [CudnnPlanCandidate(plan.name, latency) for latency, plan in best]
        return candidates_from_text(self._store.choose(case.key, candidates_to_text(found)))

    def _offer(self, case: _PlanCase, at_most: int, enough: Callable[[Sequence[BuiltCudnnPlan]], bool]) -> CudnnOffer:
        fatal = sorted(self._store.fatal(case.key))
        offer = build_cudnn_plans(
            case.kernel, case.reads, case.writes, self._handle, at_most=at_most, enough=enough,
            deadline_s=BUILD_SECONDS, precompiled=True, without=fatal, max_workspace_nbytes=MAX_WORKSPACE_NBYTES,
            trying=partial(self._store.trying, case.key),
        )  # fmt: skip
        if not offer.plans:
            reason = offer.refusal or f"all plans crashed the GPU or the process before ({', '.join(fatal)})"
            raise DeviceError(f"cuDNN has no engine for {case.kernel}: {reason}")
        self._fatal |= {f"{name!r} for {case.kernel}": None for name in fatal}
        self._large |= {f"{name!r} for {case.kernel}": None for name in offer.large}
        return offer

    def _guess(self, case: _PlanCase) -> CudnnPlanGuess:
        return CudnnPlanGuess.of(case.kernel, case.reads, case.writes, self._handle)

    @property
    def _handle(self) -> Any:
        return self._handles.of(self._lanes.origin)

    def _plan(self, case: _PlanCase, name: str) -> BuiltCudnnPlan:
        if (case.key, name) not in self._plans:
            try:
                plan = self._stored(case, name)
            except DeviceError as error:
                self._replaced.append(str(error))
                alone = self._candidates[case.key][0].name
                plan = self._first_guess(case) if name == alone else self._plan(case, alone)
            self._plans[case.key, name] = plan
        return self._plans[case.key, name]

    def _stored(self, case: _PlanCase, name: str) -> BuiltCudnnPlan:
        if name in self._store.fatal(case.key):
            raise DeviceError(f"cuDNN plan {name!r} crashed the GPU or the process before")
        with self._store.trying(case.key, name):
            content = self._store.plan(case.key, name)
            if content is not None:
                try:
                    return load_cudnn_plan(name, content, case.kernel.precision, self._handle)
                except DeviceError:  # of another cuDNN, or damaged: rebuild it
                    pass
            plan = rebuild_cudnn_plan(case.kernel, case.reads, case.writes, self._handle, name)
        self._store.keep_plan(case.key, name, plan.serialize())
        return plan

    def _first_guess(self, case: _PlanCase) -> BuiltCudnnPlan:
        guess = self._guess(case)
        plan = guess.best(self._offer(case, 1, guess.is_settled).plans)
        return self._plans.setdefault((case.key, plan.name), plan)

    def _timed(self, case: _PlanCase, plans: Sequence[BuiltCudnnPlan]) -> list[tuple[float, BuiltCudnnPlan]]:
        views = (*case.reads, *case.writes)
        memory: list[Memory] = []  # must outlive failures below
        with synchronized_on_error(self._driver, (self._lanes.origin,)):
            for view in views:
                memory.append(self._scratch(view))
        addresses = [each.ptr + view.offset % 16 for each, view in zip(memory, views, strict=True)]
        timer = CudnnPlanTimer(
            self._driver, self._lanes, addresses, lambda plan: self._store.trying(case.key, plan.name)
        )
        running = [RunningCudnnPlan(case.key, plan, (), self._handles) for plan in plans]
        return list(zip(timer.latencies_us(running), plans, strict=True))

    def _scratch(self, view: View) -> Memory:
        extent = view.nbytes
        if view.strides is not None and view.shape is not None:
            reach = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
            extent = max(extent, reach + view.nbytes)
        memory = self._driver.allocate(extent + 16)
        self._driver.fill(memory.ptr, _ORDINARY, extent + 16, self._lanes.origin)
        return memory


class CudnnHandles:
    """One cuDNN handle for each stream; each takes GPU memory, so there should be few streams."""

    def __init__(self, driver: Driver) -> None:
        """Raises DeviceError if cuDNN is not installed."""
        self.driver, self._cudnn = driver, load_cudnn()
        self._of: dict[int, tuple[Any, Any]] = {}

    def of(self, stream: Any) -> Any:
        """The handle of `stream`.

        Raises:
            DeviceError: cuDNN cannot create one, perhaps for lack of memory.
        """
        known = self._of.get(id(stream))
        if known is None:
            try:
                with self.driver.current():
                    handle = self._cudnn.create_handle()
                    self._cudnn.set_stream(handle=handle, stream=stream.ptr)
            except RuntimeError as error:
                raise DeviceError(f"cannot create a cuDNN handle on this GPU ({error})") from error
            known = self._of[id(stream)] = (handle, stream)  # keeps the stream, so that its id is not reused
        return known[0]


@dataclass(frozen=True, eq=False)
class RunningCudnnPlan:
    """A `CudnnPlan` with the handles of the streams that it runs on."""

    key: str
    plan: BuiltCudnnPlan
    candidates: tuple[CudnnPlanCandidate, ...]
    handles: CudnnHandles

    @property
    def name(self) -> str:
        """See `CudnnPlan`."""
        return self.plan.name

    @property
    def workspace_nbytes(self) -> int:
        """See `CudnnPlan`."""
        return self.plan.workspace_nbytes

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """See `CudnnPlan`."""
        try:
            with self.handles.driver.current():
                self.plan.execute(addresses, workspace, self.handles.of(stream))
        except failures() as error:
            raise kept_if_lost(translated(error)) from error
