"""What came of a trial: its costs, its score, or the result of an earlier trial of the same variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from iosched.jobs.exploring.objectives import LATENCY, Constraint
from iosched.jobs.exploring.result import Feedback, Latency
from iosched.jobs.exploring.settings import Asked
from iosched.jobs.pool.task import Pending
from iosched.jobs.ranking.cost import ModelCost
from iosched.models.errors import DeviceError, DeviceLostError, IoschedError
from iosched.models.model import Model

MOST_REASON = 1000


class InterruptedTrialError(Exception):
    """The user interrupted while a trial waited for this machine; the trial has no result."""


def costed(feedback: Feedback, model: Model, costs: Mapping[str, Pending[ModelCost]], asked: Asked) -> Feedback:
    """Adds the values that need no score; where something fails, those that were found before.

    Args:
        costs: what the model costs on each device.

    Raises:
        DeviceError: no variant can be costed.
        DeviceLostError: a device stopped working.
    """
    values = {"flops": float(model.flops), "params": float(model.n_parameters)}
    latencies: dict[str, Latency] = {}
    reason = schedule = None
    try:
        for device, pending in costs.items():
            cost = pending.result()
            values[f"{LATENCY}{device}"], latencies[device] = cost.latency_us, _latency(cost)
            if device == asked.devices[0] and cost.result is not None:
                schedule = cost.result.document.to_json()
    except (DeviceError, DeviceLostError):
        raise
    except IoschedError as error:
        reason = reason_of(error)
    violated = _violated(asked.constraints, values) if reason is None and asked.score is not None else None
    found = replace(feedback, values=values, latencies=latencies, schedule=schedule)
    return replace(found, reason=reason or violated, is_stopped=violated is not None)


def again(own: Feedback, number: int, first: Feedback) -> Feedback:
    """What came of a variant that trial `number` was of: `first`."""
    reused = None if first.reason is not None else number if first.reused is None else first.reused
    return replace(first, record=own.record, schedule=None, seconds=own.seconds, reused=reused)


def reason_of(error: Exception) -> str:
    """Why a trial failed, in a text of limited length."""
    text = str(error) if isinstance(error, IoschedError) else f"{type(error).__name__}: {error}"
    return text[:MOST_REASON]


def _latency(cost: ModelCost) -> Latency:
    seconds = cost.search_seconds, cost.comparison_seconds
    return Latency(cost.cost, cost.low_us, cost.high_us, cost.sequential_us, cost.hit_rate, *seconds)


def _violated(constraints: Sequence[Constraint], values: Mapping[str, float]) -> str | None:
    """Which constraint a variant violates, by what is known before it is scored."""
    broken = (each for each in constraints if each.name in values and each.violation(values[each.name]) > 0)
    return next((f"{each.name} is {values[each.name]:g}, not {each}: not scored" for each in broken), None)
