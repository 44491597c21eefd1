"""What `optimize` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from iosched.profiler.devices.device import Barriers, OpenSettings
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.strategy_names import StrategyName, pruning_of


@dataclass(frozen=True)
class OptimizeSettings:
    """What to optimize for, and how hard to try.

    Attributes:
        device: as `--device` takes it.
        threads: cores to use; all that the process may use by default.
        strategy: "concurrent", "merge", "both", "dos", or a baseline: "sequential", "greedy".
        r: most operators in a group, None for any number; "dos" has its own limits.
        s: most groups in a stage, None for any number.
        budget_s: seconds after which the best schedule known is taken; comparing whole models is part of them.
        profile_db: the database; the user's own by default.
        precision: what a GPU computes in: "fp32", "tf32" or "fp16".
        exhaustive: measure every stage instead of searching lazily.
        resume: take what the database knows; False measures anew and replaces it.
        barriers: on an attached GPU, whether a stage waits for all of the one before ("stage"), for what it reads alone
            ("none"), or as is faster ("auto").
        schedule_from: the schedule to take, of a model of the same structure, in place of one that is searched.
    """

    device: str = "auto"
    threads: int | None = None
    strategy: StrategyName = "both"
    r: int | None = 3
    s: int | None = 8
    budget_s: float | None = None
    profile_db: Path | None = None
    precision: str = DEFAULT_PRECISION
    exhaustive: bool = False
    resume: bool = True
    barriers: Barriers = "auto"
    schedule_from: ScheduleDocument | None = None

    @property
    def pruning(self) -> Pruning:
        """The limits on stages that the strategy is searched under."""
        return pruning_of(self.strategy, Pruning(self.r, self.s))

    @property
    def opening(self) -> OpenSettings:
        """How the model is to be opened on the device."""
        return OpenSettings(self.threads, self.precision, self.barriers, self.resume)
