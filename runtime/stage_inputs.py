"""What a stage that runs alone finds already computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosched.runtime.intervals import Intervals
from iosched.runtime.plan import Space
from iosched.runtime.waits import Span, Step


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
