"""What a search asks of a device, as values: they can be asked ahead, elsewhere, or of several devices at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from iosched.scheduler.schedule import Stage, Strategy

Kind = Literal["latency", "again", "operator", "work"]
"""What is asked of the cost model.

    latency     `stage_latency_us`; or `latency_unless_worse_us`, where `worse_than_us` is finite
    again       `remeasure`
    operator    `operator_latency_us`
    work        `operator_work_us`
"""


@dataclass(frozen=True)
class Question:
    """One question to a cost model; `asking.ask` asks it.

    Attributes:
        stage: what is asked about; for "operator" and "work" a stage of one operator.
        kind: what is asked.
        worse_than_us: a latency above which it does not matter what the stage takes; for "latency" alone.
    """

    stage: Stage
    kind: Kind = "latency"
    worse_than_us: float = math.inf


def of_operator(name: str, kind: Literal["operator", "work"]) -> Question:
    """The question for what is known of one operator (`OperatorBounds`)."""
    return Question(Stage(Strategy.CONCURRENT, ((name,),)), kind)
