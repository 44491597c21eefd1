"""Ways to run a whole model on a device, facts about them, and about how long measuring them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iosched.profiler.store.latencies import structure
from iosched.scheduler.schedule import Schedule


@dataclass(frozen=True)
class Way:
    """One way to run a whole model.

    Attributes:
        schedule: the schedule to run, in the device's units.
        how: a text of the device's own that says how this way differs from its usual way; empty for the usual way.
    """

    schedule: Schedule
    how: str = ""

    @property
    def text(self) -> str:
        """A text that says all of how the model is run; ways with equal texts do the same."""
        return structure(self.schedule) + self.how


@dataclass(frozen=True)
class Running:
    """Facts about one way to run the model.

    Attributes:
        n_kernels: how many kernels one run launches; None where the library that runs them does not tell.
        runtime: the settings with which the runtime runs the model this way again; "runtime" in a schedule file.
        notes: sentences that a user should read about this way.
        plan_nbytes: memory of the plan: weights, inputs and outputs, and the arena in which all other tensors lie; None
            where no plan of ours runs the model.
    """

    n_kernels: int | None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    plan_nbytes: int | None = None


@dataclass(frozen=True)
class Prices:
    """About how long it takes to measure something on a device.

    Attributes:
        measurement_s: seconds to compile, warm up and sample one stage.
        comparison_s: seconds to compare whole models at the end, if one run of a model takes a few milliseconds.
        samples_alone: how often each operator is measured alone: once on all lanes and, where the device has several,
            once more on a single lane.
    """

    measurement_s: float
    comparison_s: float
    samples_alone: int


@dataclass(frozen=True)
class Wording:
    """Words for messages that depend on the device.

    Attributes:
        sequential: names the schedule that runs one operator after another.
        rival: names what the schedule is compared with at the end.
        elsewhere: says on which device a runtime can be measured that does not run on this one.
    """

    sequential: str
    rival: str
    elsewhere: str
