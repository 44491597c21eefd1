"""Finds the steps that must wait for steps of other lanes, and the input buffers of a stage that runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.runtime.intervals import Intervals
from iosched.runtime.plan import MemorySpace, Wait


@dataclass(frozen=True)
class Span:
    """A part `[start, stop)` of a buffer: bytes, or columns of one with a pitch."""

    buffer: str
    start: int
    stop: int

    def overlaps(self, other: Span) -> bool:
        """Whether both share a byte or column."""
        return self.buffer == other.buffer and self.start < other.stop and other.start < self.stop


@dataclass(frozen=True)
class LaneStep:
    """One step of a lane.

    Attributes:
        stage: index of its stage in the schedule.
        is_alone: whether it has the device to itself: it waits for all earlier steps, and all later ones wait for it.
    """

    lane: int
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    stage: int = 0
    is_alone: bool = False


_Accesses = dict[str, list[tuple[Span, int, int]]]
"""For each buffer, its accessed parts with lane and step."""


def find_waits(steps: Sequence[LaneStep], lanes: int, *, barriers: bool = False) -> list[tuple[Wait, ...]]:
    """The waits of each step: for steps on other lanes that write what it reads, or access what it writes.

    A lane knows of the others by its vector clock, so waits that follow from earlier ones are omitted.
    O(reads * writers of the buffer + writes * accesses of the buffer + steps * lanes).

    Args:
        barriers: a step waits for all steps of earlier stages.
    """
    stamps: list[list[tuple[int, ...]]] = [[] for _ in range(lanes)]  # by lane, its clock after each step
    clocks = [(0,) * lanes for _ in range(lanes)]
    writers: _Accesses = {}
    readers: _Accesses = {}
    before: list[tuple[int, int]] = []  # by lane, the steps that all later steps wait for
    waits: list[tuple[Wait, ...]] = []
    for position, step in enumerate(steps):
        earlier = steps[position - 1] if position else step
        if (barriers and step.stage != earlier.stage) or step.is_alone or earlier.is_alone:
            before = [(lane, clocks[lane][lane]) for lane in range(lanes)]
        clock = clocks[step.lane]
        wanted = _wanted(step, clock, writers, readers, before)
        known = [clock, *(stamps[lane][count - 1] for lane, count in wanted.items())]
        joined = [max(counts) for counts in zip(*known, strict=True)]
        direct = {lane: count for lane, count in wanted.items() if not _is_implied(lane, count, wanted, stamps)}
        joined[step.lane] += 1
        clocks[step.lane] = tuple(joined)
        stamps[step.lane].append(clocks[step.lane])
        waits.append(tuple(Wait(lane, count) for lane, count in sorted(direct.items())))
        for accesses, spans in ((writers, step.writes), (readers, step.reads)):
            for span in spans:
                accesses.setdefault(span.buffer, []).append((span, step.lane, joined[step.lane]))
    return waits


def _wanted(
    step: LaneStep,
    clock: tuple[int, ...],
    writers: _Accesses,
    readers: _Accesses,
    before: Sequence[tuple[int, int]],
) -> dict[int, int]:
    wanted: dict[int, int] = {}
    awaited = [*before]
    touched = [(writers, step.reads), (writers, step.writes), (readers, step.writes)]
    for accesses, own in ((accesses, own) for accesses, spans in touched for own in spans):
        awaited += [(lane, count) for span, lane, count in accesses.get(own.buffer, ()) if span.overlaps(own)]
    for lane, count in awaited:
        if lane != step.lane and count > max(clock[lane], wanted.get(lane, 0)):
            wanted[lane] = count
    return wanted


def _is_implied(lane: int, count: int, wanted: dict[int, int], stamps: list[list[tuple[int, ...]]]) -> bool:
    return any(other != lane and stamps[other][steps - 1][lane] >= count for other, steps in wanted.items())


def input_spaces(steps: Sequence[LaneStep]) -> Mapping[str, MemorySpace]:
    """The space of every buffer in which `steps` read bytes that they do not write first; O(reads * pieces).

    INPUT, or INOUT where they write parts of it: some operands of a Concat whose others earlier stages wrote, or a
    tensor that they add to.
    """
    written: dict[str, Intervals[None]] = {}
    inputs: dict[str, None] = {}
    for step in steps:
        for span in step.reads:
            if span.buffer not in written or not _covers(written[span.buffer], span):
                inputs[span.buffer] = None
        for span in step.writes:
            own = written.setdefault(span.buffer, Intervals())
            if span.start < span.stop:
                own.put(span.start, span.stop, None)
    return {name: MemorySpace.INOUT if name in written else MemorySpace.INPUT for name in inputs}


def _covers(written: Intervals[None], span: Span) -> bool:
    return sum(stop - start for start, stop, _ in written.within(span.start, span.stop)) >= span.stop - span.start
