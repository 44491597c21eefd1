"""What ships on a device that is not here: by a model of it, with nothing measured."""

from __future__ import annotations

from dataclasses import replace

from iosched.jobs.result import Verdict
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel, Running
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import Alternative
from iosched.scheduler.document_format import Shipped
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import runs_as_one


def predicted_verdict(model: Model, opened: OpenModel, precision: str, found: SearchResult) -> Verdict:
    """Compares the schedule found with the baselines, and ships it where it is faster than the sequential one."""
    predicted = {
        name: _predicted(opened, schedule)
        for name, schedule in (
            ("iosched", found.schedule), ("sequential", sequential(model.graph)), ("greedy", greedy(model.graph))
        )
    }  # fmt: skip
    latency_us = {name: sum(stage.predicted_us or 0.0 for stage in each.stages) for name, each in predicted.items()}
    # Sums of the same latencies in another order differ in the last bits.
    is_faster = latency_us["iosched"] < latency_us["sequential"] * (1 - 1e-9)
    shipped: Shipped = "iosched" if is_faster else "sequential"
    proven, chosen = found.proven, predicted[shipped]
    if not is_faster:  # as fast as what was found; its only block is the whole graph
        proven = "whole" if proven == "whole" else None
        chosen = Schedule(tuple(replace(block, optimal=proven == "whole") for block in chosen.blocks))
    return Verdict(
        shipped=shipped,
        reason=_reason(shipped, latency_us["iosched"], latency_us["sequential"]),
        schedule=chosen,
        proven=proven,
        alternatives=tuple(Alternative(name, each) for name, each in predicted.items() if name != shipped),
        latency_us={
            "predicted": latency_us["iosched"],
            "sequential": latency_us["sequential"],
            "greedy": latency_us["greedy"],
        },
        kernels_before=len(model.graph.operators),
        running=Running(sum(map(_kernel_count, chosen.stages)), {"precision": precision}),
    )


def _predicted(opened: OpenModel, schedule: Schedule) -> Schedule:
    """With what each stage takes by the model of the device."""
    blocks = (
        replace(
            block,
            stages=tuple(replace(stage, predicted_us=opened.cost.stage_latency_us(stage)) for stage in block.stages),
        )
        for block in schedule.blocks
    )
    return Schedule(tuple(blocks))


def _kernel_count(stage: Stage) -> int:
    return 1 if runs_as_one(stage) else len(stage.operators)


def _reason(shipped: Shipped, predicted_us: float, sequential_us: float) -> str:
    if shipped == "sequential":
        return "by the analytic model no other schedule is faster than one operator after another"
    return f"by the analytic model it is {sequential_us / predicted_us:.2f}x as fast as one operator after another"
