"""Cuts a plan into what is captured and what onnxruntime runs in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iosched.runtime.cuda.kernel import Kernel, SessionKernel
from iosched.runtime.cuda.lower.plan import Lowering
from iosched.runtime.order import happens_before
from iosched.runtime.plan import Task


@dataclass(frozen=True)
class Segment:
    """Tasks between two of onnxruntime's: `(lane, step)` in an order that all waits allow; or one of onnxruntime's."""

    tasks: tuple[tuple[int, int], ...]
    is_session: bool


def segments(lowering: Lowering) -> list[Segment]:
    """The tasks in an order that all waits allow, cut before and after those of onnxruntime."""
    order = happens_before(lowering.plan.lanes)
    place = [(lane, step) for lane, tasks in enumerate(lowering.plan.lanes) for step in range(len(tasks))]
    pairs = [place[number] for number in order.sequence]
    found: list[Segment] = []
    current: list[tuple[int, int]] = []
    for pair in pairs:
        if not _runs_in_session(lowering.kernels, lowering.plan.lanes[pair[0]][pair[1]]):
            current.append(pair)
            continue
        if current:
            found.append(Segment(tuple(current), is_session=False))
        found.append(Segment((pair,), is_session=True))
        current = []
    return [*found, *([Segment(tuple(current), is_session=False)] if current else [])]


def _runs_in_session(kernels: Sequence[Kernel], task: Task) -> bool:
    return isinstance(kernels[task.kernel], SessionKernel)
