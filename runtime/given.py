"""What a stage that runs alone finds already computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosched.runtime.intervals import Intervals
from iosched.runtime.plan import Space
from iosched.runtime.waits import Span, Step


def given_spaces(steps: Sequence[Step]) -> Mapping[str, Space]:
    """The space of every buffer in which `steps` read what none of them writes; O(reads * pieces of the buffer).

    That is INPUT, or INOUT where they write parts of it: some operands of a Concat, of which earlier stages wrote the
    others into the same buffer.
    """
    written: dict[str, Intervals[None]] = {}
    for span in (span for step in steps for span in step.writes):
        own = written.setdefault(span.buffer, Intervals())
        if span.start < span.stop:
            own.put(span.start, span.stop, None)
    found: dict[str, Space] = {}
    for span in (span for step in steps for span in step.reads):
        if span.buffer not in written:
            found[span.buffer] = Space.INPUT
        elif not _covers(written[span.buffer], span):
            found[span.buffer] = Space.INOUT
    return found


def _covers(written: Intervals[None], span: Span) -> bool:
    return sum(stop - start for start, stop, _ in written.within(span.start, span.stop)) >= span.stop - span.start
