"""How a model is to be opened on a device, and which devices refuse which settings."""

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
    """The launch of that name.

    Raises:
        UsageError: there is none.
    """
    for known in LAUNCHES:
        if known == text:
            return known
    raise UsageError(f"unknown launch {text!r}: choose {' or '.join(LAUNCHES)}")


Barriers = Literal["auto", "stage", "none"]
LayoutName = Literal["auto", "nhwc", "nchw"]


@dataclass(frozen=True)
class OpenSettings:
    """How a model is to be opened on a device.

    Attributes:
        threads: the number of CPU cores to use; by default all that the process may use.
        precision: what a GPU computes in, "fp32", "tf32" or "fp16", or a CPU: "fp32", "bf16" or "fp16".
        barriers: whether a stage on an attached GPU waits for the whole stage before it ("stage"), only for the
            operators whose results it reads ("none"), or whichever of the two is faster ("auto").
        layout: how images lie in the memory of an attached GPU: the channels of a pixel side by side ("nhwc"), the
            pixels of a channel ("nchw"), or whichever of the two is faster ("auto").
        launch: how a GPU that is not attached is thought to be given its kernels: by one CUDA graph ("graph"), as our
            runtime does, or one by one ("streams"), as the runtime that IOS was published with.
        resume: whether the latencies in the profile database are used; if not, everything is measured anew and the new
            latencies replace the old ones.
        may_time: whether opening the model may run something, for example to find out which kernels are fastest.
        objective: what is optimized for: the latency of one run, or as many images a second as can be.
        strict: whether a fault of a plan is raised, instead of being contained (`runtime/faults.py`).
        gap_percent: the search of a block ends once no schedule can save more than this part of the best one found.
            Where latencies are measured, that is by predictions; None is 2 there, and 0 predicts nothing. On a GPU that
            is not attached, None is 0, and 1 in a long search.
        units: the operators of each unit that the user wants scheduled as one operator, see `join_units`.

    Raises:
        UsageError: the gap is negative, 100 or more, or no number; or there are units and the objective is throughput.
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
    """Refuses settings that mean something on attached GPUs alone.

    Raises:
        UsageError: there is one; the text says which.
    """
    for option, value in (("--barriers", settings.barriers), ("--layout", settings.layout)):
        if value != "auto":
            raise UsageError(f"{option} only applies to attached GPUs")


def refuse_for_simulated_gpus(settings: OpenSettings) -> None:
    """Refuses settings that mean something on GPUs alone that are not attached.

    Raises:
        UsageError: there is one; the text says which.
    """
    if settings.launch != DEFAULT_LAUNCH:
        raise UsageError(
            f"launch={settings.launch!r} only applies to simulated GPUs"
            "\nOmit launch, or name a GPU to simulate: 'iosched devices' lists them"
        )


def refuse_throughput(settings: OpenSettings) -> None:
    """Refuses to optimize for throughput, on devices whose cores cannot be divided into teams.

    Raises:
        UsageError: it is asked for.
    """
    if settings.objective != DEFAULT_OBJECTIVE:
        raise UsageError(
            f"--objective {settings.objective} only applies to CPUs: a GPU runs the whole batch by one schedule\n"
            "Use --device cpu, or a larger --batch-size"
        )


def precision_on(gpu_name: str, precision: str, *, has_tf32: bool) -> PrecisionName:
    """The precision of that name, for a GPU that has it.

    Args:
        gpu_name: what people call the GPU.
        has_tf32: whether its tensor cores multiply floats.

    Raises:
        UsageError: there is no such precision, or none on this GPU; the text says which there are.
    """
    if precision not in PRECISIONS and precision in ALL_PRECISIONS:
        raise UsageError(f"{gpu_name} does not support {precision}: use --precision {', '.join(PRECISIONS)}")
    found = precision_named(precision)
    if found == "tf32" and not has_tf32:
        raise UsageError(
            f"{gpu_name} does not support tf32, which needs compute capability 8.0: use --precision fp32 or fp16"
        )
    return found
