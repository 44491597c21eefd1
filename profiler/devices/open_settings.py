"""Settings for opening a model on a device, and the devices that reject them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from iosched.models.errors import UsageError
from iosched.scheduler.precision import ALL_PRECISIONS, DEFAULT_PRECISION, PRECISIONS, PrecisionName, precision_named
from iosched.scheduler.teams import DEFAULT_OBJECTIVE, Objective
from iosched.scheduler.unit_graph import Unit

LaunchName = Literal["graph", "streams"]
"""All kernels of a network by one CUDA graph, as our runtime does; one by one into streams, as IOS's runtime did."""

LAUNCHES: tuple[LaunchName, ...] = get_args(LaunchName)
DEFAULT_LAUNCH: LaunchName = "graph"


def launch_named(text: str) -> LaunchName:
    """The launch of that name; raises a UsageError if there is none."""
    for known in LAUNCHES:
        if known == text:
            return known
    raise UsageError(f"unknown launch {text!r}: choose {' or '.join(LAUNCHES)}")


Barriers = Literal["auto", "stage", "none"]
LayoutName = Literal["auto", "nhwc", "nchw"]


@dataclass(frozen=True)
class OpenSettings:
    """Settings for opening a model on a device.

    Attributes:
        threads: CPU cores to use; by default `default_threads()`, for throughput all that the process may use.
        precision: "fp32", "tf32" or "fp16" on a GPU; "fp32", "bf16" or "fp16" on a CPU.
        barriers: stages on an attached GPU wait for the whole stage before them ("stage"), only for their inputs
            ("none"), or whichever is faster ("auto").
        layout: of images on an attached GPU: channels last ("nhwc"), channels first ("nchw"), or the faster one
            ("auto").
        launch: of kernels on a simulated GPU: one CUDA graph ("graph"), or one by one ("streams") as in IOS's runtime.
        resume: whether latencies in the profile database are used; if not, new ones replace them.
        may_time: whether opening may time kernels.
        objective: latency of one run, or throughput.
        strict: whether faults of a plan are raised instead of contained (`runtime/faults.py`).
        gap_percent: a block's search ends once no schedule can save more than this share. Measured latencies use
            predictions: None is 2, 0 disables them. On a simulated GPU None is 0, and 1 in a long search.
        units: the operators of each requested unit, see `join_units`.

    Raises:
        UsageError: the gap is out of range, or units are combined with throughput.
    """

    threads: int | None = None
    precision: str = DEFAULT_PRECISION
    barriers: Barriers = "auto"
    layout: LayoutName = "auto"
    launch: str = DEFAULT_LAUNCH
    resume: bool = True
    may_time: bool = True
    objective: Objective = DEFAULT_OBJECTIVE
    strict: bool = False
    gap_percent: float | None = None
    units: tuple[Unit, ...] = ()

    def __post_init__(self) -> None:
        if self.gap_percent is not None and not 0 <= self.gap_percent < 100:
            raise UsageError(f"the gap must be at least 0 and below 100 percent, not {self.gap_percent}")
        if self.units and self.objective != DEFAULT_OBJECTIVE:
            raise UsageError(f"units require the objective {DEFAULT_OBJECTIVE}: omit --units or --objective")


def refuse_for_attached_gpus(settings: OpenSettings) -> None:
    """Raises a UsageError for settings that apply only to attached GPUs."""
    for option, value in (("--barriers", settings.barriers), ("--layout", settings.layout)):
        if value != "auto":
            raise UsageError(f"{option} only applies to attached GPUs")


def refuse_for_simulated_gpus(settings: OpenSettings) -> None:
    """Raises a UsageError for settings that apply only to simulated GPUs."""
    if settings.launch != DEFAULT_LAUNCH:
        raise UsageError(
            f"launch={settings.launch!r} only applies to simulated GPUs"
            "\nOmit launch, or name a GPU to simulate: 'iosched devices' lists them"
        )


def precision_on(gpu_name: str, precision: str, *, has_tf32: bool) -> PrecisionName:
    """The precision of that name; raises a UsageError if there is none, or not on this GPU."""
    if precision not in PRECISIONS and precision in ALL_PRECISIONS:
        raise UsageError(f"{gpu_name} does not support {precision}: use --precision {', '.join(PRECISIONS)}")
    found = precision_named(precision)
    if found == "tf32" and not has_tf32:
        raise UsageError(
            f"{gpu_name} does not support tf32, which needs compute capability 8.0: use --precision fp32 or fp16"
        )
    return found
