"""Which cuDNN plans run a kernel fastest on an attached GPU: found once, by timing them, and kept."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.choices import Choices
from iosched.runtime.cuda.cudnn.chooser import (
    FASTEST_ALONE,
    Candidate,
    CudnnPlanNames,
    candidates_from_text,
    candidates_to_text,
    names_from_text,
    names_to_text,
    stage_key,
)
from iosched.runtime.cuda.cudnn.guess import CudnnPlanGuess
from iosched.runtime.cuda.cudnn.plans import (
    BuiltCudnnPlan,
    CudnnOffer,
    build_cudnn_plans,
    load_cudnn_plan,
    rebuild_cudnn_plan,
)
from iosched.runtime.cuda.cudnn.running import Handles, RunningCudnnPlan
from iosched.runtime.cuda.cudnn.timing import CudnnPlanTimer
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import Lanes, settled
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.plan import View

MOST_BUILT = 12
BUILD_SECONDS = 5.0
MOST_KEPT = 4
MOST_WORKSPACE_NBYTES = 256 << 20
"""Each stream has a workspace of its own, as large as the largest plan that it runs asks for; some ask for 900 MB."""

KEPT_WITHIN = 1.3
"""A plan that takes longer alone, by this factor, is not tried in stages."""

_ORDINARY = 0x3C  # repeated, a float32 of 0.01 and a float16 of 1.06: zeros and NaN may run faster than real data


def cudnn_plan_key(kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> str:
    """The key of a kernel on tensors of these layouts: equal where one cuDNN plan is right for both."""
    views = [(view.dtype, view.shape, view.strides, view.offset % 16) for view in (*reads, *writes)]
    return hashlib.sha256(f"{kernel!r}{views}".encode()).hexdigest()[:24]


class CudnnPlanStore(Choices, Protocol):
    """Where cuDNN plans are kept beyond the process, beside the choices between them."""

    def plan(self, key: str, name: str) -> bytes | None:
        """The serialized plan of that name for that key."""
        ...

    def keep_plan(self, key: str, name: str, content: bytes) -> None:
        """Keeps the serialized plan of that name for that key."""
        ...

    def fatal(self, key: str) -> frozenset[str]:
        """Names of plans for that key that stopped the GPU, or ended the process, when they were tried before."""
        ...

    def trying(self, key: str, name: str) -> AbstractContextManager[None]:
        """For the time in which a plan is built, loaded or first run.

        If that ends the process or, as a `DeviceLostError` says, the GPU stops, the plan is `fatal` from then on.
        """
        ...


@dataclass(frozen=True, eq=False)
class _Case:
    """A kernel with the views of the tensors that it reads and writes, and the key of both."""

    key: str
    kernel: CudnnKernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]


class FastestCudnnPlans:
    """Chooses plans for one GPU, the same for the same kernel and layout. See `CudnnPlanChooser`."""

    def __init__(
        self, driver: Driver, memory: CudnnPlanStore, lanes: Lanes | None = None, handles: Handles | None = None
    ) -> None:
        """Nothing is chosen yet, but for what `memory` knows.

        Args:
            lanes: the GPU's streams; plans are timed on the first.
            handles: of these streams.

        Raises:
            DeviceError: cuDNN is not installed.
        """
        self._replaced: list[str] = []
        self._fatal: dict[str, None] = {}
        self._large: dict[str, None] = {}
        self._memory = memory
        self._driver = driver
        self._lanes = lanes or Lanes(driver)
        self._handles = handles or Handles()
        self._candidates: dict[str, tuple[Candidate, ...]] = {}
        self._plans: dict[tuple[str, str], BuiltCudnnPlan] = {}
        self._stages: dict[str, CudnnPlanNames] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """See `CudnnPlanChooser`."""
        said = (
            (
                self._replaced,
                "that were chosen before cannot be built here; others run instead. Optimize the model again.",
            ),
            (
                self._fatal,
                "were not tried: when they were before, the GPU stopped or the process ended."
                " `iosched profile clear` lets them be tried again.",
            ),
            (
                self._large,
                f"were left out, since they need more than {MOST_WORKSPACE_NBYTES >> 20} MiB beside the tensors.",
            ),
        )
        return tuple(
            f"{len(found)} plans of cuDNN {text} The first: {next(iter(found))}." for found, text in said if found
        )

    def __call__(
        self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames = FASTEST_ALONE
    ) -> RunningCudnnPlan:
        """See `CudnnPlanChooser`.

        A plan that is known and cannot be built gives way to the fastest alone, or to the best guess; see `notes`.

        Raises:
            DeviceError: cuDNN offers none, or none that runs.
        """
        case = _Case(cudnn_plan_key(kernel, reads, writes), kernel, tuple(reads), tuple(writes))
        if case.key not in self._candidates:
            self._candidates[case.key] = self._ranked(case)
        candidates = self._candidates[case.key]
        plan = self._plan(case, names.get(case.key, candidates[0].name))
        return RunningCudnnPlan(case.key, plan, candidates, self._handles)

    def of_stage(self, signature: str) -> CudnnPlanNames | None:
        """See `CudnnPlanChooser`."""
        if signature not in self._stages:
            known = self._memory.choice(stage_key(signature))
            if known is None:
                return None
            self._stages[signature] = names_from_text(known)
        return self._stages[signature]

    def keep(self, signature: str, names: CudnnPlanNames) -> CudnnPlanNames:
        """See `CudnnPlanChooser`."""
        holds = self._memory.choose(stage_key(signature), names_to_text(names))
        self._stages[signature] = names_from_text(holds)
        return self._stages[signature]

    def _ranked(self, case: _Case) -> tuple[Candidate, ...]:
        known = candidates_from_text(self._memory.choice(case.key) or "")
        if known:
            return known
        if not self._memory.times:
            return (Candidate(self._first_guess(case).name),)
        offer = self._offer(case, MOST_BUILT, self._guess(case).has_choice)
        timed = sorted(self._timed(case, offer.plans), key=lambda pair: pair[0])
        if math.isinf(timed[0][0]):
            raise DeviceError(f"cuDNN has no engine that runs {case.kernel} on this GPU")
        best = [pair for pair in timed if pair[0] <= timed[0][0] * KEPT_WITHIN][:MOST_KEPT]
        self._plans |= {(case.key, plan.name): plan for _, plan in best}
        self._memory.keep_plan(case.key, best[0][1].name, best[0][1].serialize())
        found = [Candidate(plan.name, latency) for latency, plan in best]
        return candidates_from_text(self._memory.choose(case.key, candidates_to_text(found)))

    def _offer(self, case: _Case, at_most: int, enough: Callable[[Sequence[BuiltCudnnPlan]], bool]) -> CudnnOffer:
        fatal = sorted(self._memory.fatal(case.key))
        offer = build_cudnn_plans(
            case.kernel, case.reads, case.writes, self._handle, at_most=at_most, enough=enough,
            deadline_s=BUILD_SECONDS, precompiled=True, without=fatal, most_workspace_nbytes=MOST_WORKSPACE_NBYTES,
            trying=partial(self._memory.trying, case.key),
        )  # fmt: skip
        if not offer.plans:
            reason = offer.refusal or f"none but what stopped the GPU or the process before, {', '.join(fatal)}"
            raise DeviceError(f"cuDNN has no engine for {case.kernel}: {reason}")
        self._fatal |= {f"{name!r} for {case.kernel}": None for name in fatal}
        self._large |= {f"{name!r} for {case.kernel}": None for name in offer.large}
        return offer

    def _guess(self, case: _Case) -> CudnnPlanGuess:
        return CudnnPlanGuess.of(case.kernel, case.reads, case.writes, self._handle)

    @property
    def _handle(self) -> Any:
        return self._handles.of(self._lanes.origin)

    def _plan(self, case: _Case, name: str) -> BuiltCudnnPlan:
        if (case.key, name) not in self._plans:
            try:
                plan = self._stored(case, name)
            except DeviceError as error:
                self._replaced.append(str(error))
                alone = self._candidates[case.key][0].name
                plan = self._first_guess(case) if name == alone else self._plan(case, alone)
            self._plans[case.key, name] = plan
        return self._plans[case.key, name]

    def _stored(self, case: _Case, name: str) -> BuiltCudnnPlan:
        """The plan of that name: loaded, or built again and kept."""
        if name in self._memory.fatal(case.key):
            raise DeviceError(f"cuDNN's plan {name!r} stopped the GPU or ended the process when it was tried")
        with self._memory.trying(case.key, name):
            content = self._memory.plan(case.key, name)
            if content is not None:
                try:
                    return load_cudnn_plan(name, content, case.kernel.precision, self._handle)
                except DeviceError:  # of another cuDNN, or damaged: it is built again
                    pass
            plan = rebuild_cudnn_plan(case.kernel, case.reads, case.writes, self._handle, name)
        self._memory.keep_plan(case.key, name, plan.serialize())
        return plan

    def _first_guess(self, case: _Case) -> BuiltCudnnPlan:
        guess = self._guess(case)
        plan = guess.best(self._offer(case, 1, guess.is_settled).plans)
        return self._plans.setdefault((case.key, plan.name), plan)

    def _timed(self, case: _Case, plans: Sequence[BuiltCudnnPlan]) -> list[tuple[float, BuiltCudnnPlan]]:
        """Each plan with its latency alone; infinite where it fails."""
        views = (*case.reads, *case.writes)
        memory: list[Memory] = []  # outlives what fails below
        with settled(self._driver, (self._lanes.origin,)):
            for view in views:
                memory.append(self._scratch(view))
        addresses = [each.ptr + view.offset % 16 for each, view in zip(memory, views, strict=True)]
        timer = CudnnPlanTimer(
            self._driver, self._lanes, addresses, lambda plan: self._memory.trying(case.key, plan.name)
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
