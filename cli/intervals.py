"""How well computed latencies and their ratios are known, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.cli.text import latency_text

if TYPE_CHECKING:
    from iosched.profiler.measuring.statistics import Interval

ENDS = "low high"
RATIO = "value low high equal=is_equal"
COMPARED = "of median=value low high"
"""The keys in JSON of an interval, of a computed ratio and of a measured one, see `json_object`."""
AS_FAR = "as far as the model can tell"
EQUAL = "="
"""The mark of a latency in a table that equals another one as far as is known."""


def latency_ends_text(found: Interval) -> str:
    """The ends of a latency's interval, in one unit if they have one: `5.900 to 7.200 ms`."""
    low, high = latency_text(found.low), latency_text(found.high)
    number, _, unit = low.rpartition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def equal_text(to: str) -> str:
    """What is said below a table that has the mark."""
    return f"{EQUAL} takes as long as {to}, {AS_FAR}"
