"""Which steps of a lane must wait for which steps of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.runtime.intervals import Intervals
from iosched.runtime.plan import Space, Wait


@dataclass(frozen=True)
class Span:
    """A part `[start, stop)` of a buffer: bytes, or columns of one that has a pitch."""

    buffer: str
    start: int
    stop: int

    def overlaps(self, other: Span) -> bool:
        """Whether both have a byte or column in common."""
        return self.buffer == other.buffer and self.start < other.stop and other.start < self.stop


@dataclass(frozen=True)
class Step:
    """Something that a lane does.

    Attributes:
        stage: index of the schedule's stage that it belongs to.
        is_alone: whether it has the device to itself: it waits for all steps before it, and all behind it wait for it.
    """

    lane: int
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    stage: int = 0
    is_alone: bool = False


_Accesses = dict[str, list[tuple[Span, int, int]]]
"""For each buffer the parts that were accessed, by which lane, and in which of its steps."""


def find_waits(steps: Sequence[Step], lanes: int, *, barriers: bool = False) -> list[tuple[Wait, ...]]:
    """For each step, what it must wait for: the steps on other lanes that write what it reads, or read or write what it
    writes over, as far as they are not known to be done.

    What a lane knows of the others is a vector clock, so a wait that follows from an earlier one is left out.
    Complexity: O(reads * writers of the buffer + writes * readers and writers of the buffer + steps * lanes).

    Args:
        barriers: a step waits for all steps of the stages before its own, whatever it reads.
    """
    stamps: list[list[tuple[int, ...]]] = [[] for _ in range(lanes)]  # for each lane, its clock after each step
    clocks = [(0,) * lanes for _ in range(lanes)]
    writers: _Accesses = {}
    readers: _Accesses = {}
    before: list[tuple[int, int]] = []  # each lane, and how many of its steps all steps from here on wait for
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
    step: Step,
    clock: tuple[int, ...],
    writers: _Accesses,
    readers: _Accesses,
    before: Sequence[tuple[int, int]],
) -> dict[int, int]:
    """For each other lane, how many of its steps must be done that this lane does not know to be."""
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
    """Whether another wait of the same step says as much: what it waits for waited for this."""
    return any(other != lane and stamps[other][steps - 1][lane] >= count for other, steps in wanted.items())


def given_spaces(steps: Sequence[Step]) -> Mapping[str, Space]:
    """The space of every buffer in which `steps` read what none before them writes; O(reads * pieces of the buffer).

    That is INPUT, or INOUT where they write parts of it: some operands of a Concat, of which earlier stages wrote the
    others into the same buffer, or what they add to.
    """
    written: dict[str, Intervals[None]] = {}
    given: dict[str, None] = {}
    for step in steps:
        for span in step.reads:
            if span.buffer not in written or not _covers(written[span.buffer], span):
                given[span.buffer] = None
        for span in step.writes:
            own = written.setdefault(span.buffer, Intervals())
            if span.start < span.stop:
                own.put(span.start, span.stop, None)
    return {name: Space.INOUT if name in written else Space.INPUT for name in given}


def _covers(written: Intervals[None], span: Span) -> bool:
    return sum(stop - start for start, stop, _ in written.within(span.start, span.stop)) >= span.stop - span.start
