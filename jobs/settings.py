"""The settings of `optimize`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, Barriers, LayoutName, OpenSettings
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.strategies import StrategyName, pruning_of, refuse_limits
from iosched.scheduler.teams import DEFAULT_OBJECTIVE, Objective
from iosched.scheduler.unit_graph import Unit


@dataclass(frozen=True)
class OptimizeSettings:
    """Settings of `optimize`.

    Attributes:
        device: the device, as for `--device`.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        strategy: "concurrent", "merge", "both", "dos", or a baseline: "sequential", "greedy".
        r: the largest number of operators in a group, None for any; "dos" has its own limits, and refuses others.
        s: the largest number of groups in a stage, None for any.
        budget_s: the seconds for the search and the comparison of whole models; None for no limit.
        profile_db: the profile database; by default the user's.
        precision: the precision of a GPU, "fp32", "tf32" or "fp16", or a CPU: "fp32", "bf16" or "fp16".
        exhaustive: whether to measure every stage instead of searching lazily.
        resume: whether to use the latencies in the database; if not, everything is measured again and the new latencies
            replace the old ones.
        barriers: whether a stage on an attached GPU waits for the whole stage before it ("stage"), only for the
            operators whose results it reads ("none"), or whichever of the two is faster ("auto").
        layout: how images lie in the memory of an attached GPU: the channels of a pixel side by side ("nhwc"), the
            pixels of a channel ("nchw"), or whichever of the two is faster ("auto").
        launch: how a simulated GPU launches kernels: by one CUDA graph ("graph") or one by one ("streams").
        objective: what to optimize for: the latency of one run or the throughput.
        gap_percent: the search of a block ends once no schedule can save more than this part of the best one found.
            With measured latencies, unmeasured stages are predicted; None means 2, and 0 predicts nothing. On a
            simulated GPU, 0 searches until the proof; None means 0, and 1 once 2,000 stages of the block are computed.
        schedule_from: a schedule of a model of the same structure, which is used instead of searching for one.
        strict: whether a plan that fails or computes wrong outputs is an error. By default a stage that fails is left
            out of the search, and plain onnxruntime ships instead of a whole plan that fails.
        units: the operators of each unit that is scheduled as one operator; with `schedule_from`, those of that
            schedule apply.
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
    layout: LayoutName = "auto"
    launch: str = DEFAULT_LAUNCH
    schedule_from: ScheduleDocument | None = None
    objective: Objective = DEFAULT_OBJECTIVE
    strict: bool = False
    gap_percent: float | None = None
    units: tuple[Unit, ...] = ()

    @property
    def words(self) -> str:
        """Settings that differ from the defaults, for display: "device=cpu, threads=2"."""
        shown = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return (
            ", ".join(
                f"{name}={'given' if isinstance(value, ScheduleDocument) else value}"
                for name, value, default in shown
                if value != default
            )
            or "defaults"
        )

    def __post_init__(self) -> None:
        refuse_limits(self.strategy, Pruning(self.r, self.s))

    @property
    def pruning(self) -> Pruning:
        """The limits on stages in a search with this strategy."""
        return pruning_of(self.strategy, Pruning(self.r, self.s))

    @property
    def opening(self) -> OpenSettings:
        """Settings for opening the model on the device."""
        return OpenSettings(
            *(self.threads, self.precision, self.barriers, self.layout, self.launch, self.resume),
            objective=self.objective,
            strict=self.strict,
            gap_percent=self.gap_percent,
            units=self.units if self.schedule_from is None else self.schedule_from.units,
        )
