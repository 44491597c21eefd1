"""How many times as long changed stages take: measured in turn with the stage as it is, or by the analytic model."""

from __future__ import annotations

from collections.abc import Mapping

from iosched.jobs.headroom.result import Ratio
from iosched.profiler.devices.cost import ComparesStretches
from iosched.profiler.devices.uncertainty import Uncertainty
from iosched.profiler.measuring.interleave import compare
from iosched.scheduler.schedule import Stage

MOST_MEASURED = 1.05
"""Where the interval of a measured ratio reaches beyond this, not to be found slower is not enough to be free."""
MOST_COMPUTED = 1.01
"""By what part a stage may become longer by the model, and the change is still called free; see also `computed`.

Every byte that is moved costs something by a formula, also where a kernel would not become slower."""


def in_turn_us(cost: object, stage: Stage) -> float | None:
    """The latency of a stage as it is compared with others, in microseconds; None where it cannot be."""
    taken = cost.in_turn({"": [stage]}) if isinstance(cost, ComparesStretches) else {}
    return taken[""].median_us if "" in taken else None


def measured(cost: ComparesStretches, now: Stage, changed: Mapping[str, Stage]) -> dict[str, Ratio]:
    """What changed stages take over what the stage takes as it is, in turn; those that cannot be run are left out.

    A change is free if the stage is not slower beyond the noise, and the noise is small enough to say so.
    """
    taken = cost.in_turn({"": [now], **{name: [stage] for name, stage in changed.items()}})
    found = {}
    for name in changed:
        speedup = compare(taken[""], taken[name]) if "" in taken and name in taken else None
        if speedup is not None and speedup.low > 0:
            value, low, high = 1 / speedup.speedup, 1 / speedup.high, 1 / speedup.low
            found[name] = Ratio(value, low, high, is_free=not speedup.is_slower and high <= MOST_MEASURED)
    return found


def computed(known: Uncertainty, now: Stage, changed: Mapping[str, Stage]) -> dict[str, Ratio]:
    """The same by the analytic model.

    A change is free if the stage is no slower by the model, but for `MOST_COMPUTED`, and the model cannot tell it from
    one that is not slower.
    """
    found = {}
    for name, stage in changed.items():
        ratio = known.ratio([stage], [now])
        is_free = ratio.value <= MOST_COMPUTED and (ratio.is_equal or ratio.value < 1)
        found[name] = Ratio(ratio.value, ratio.low, ratio.high, is_free=is_free)
    return found
