"""The settings of `batch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from iosched.profiler.devices.launch import DEFAULT_LAUNCH
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.batching.policy_names import PolicyName
from iosched.scheduler.precision import DEFAULT_PRECISION


@dataclass(frozen=True)
class BatchSettings:
    """For what several models are put together, and how hard to try.

    Attributes:
        device: the device, as `--device` takes it.
        policy: how operators are chosen that become one: "dpbat", "greedy" and "fcfs" plan once; "auto" plans as
            "dpbat" does, also for less and less batching. "serial" and "packed" batch nothing, and run models one after
            another or side by side.
        memory_nbytes: what the models of a cluster may take together; by default the memory of the device.
        shared_inputs: names of inputs that are fed once, to all models that have them.
        threads: the number of CPU cores to use; by default all that the process may use, as far as its quota goes.
        precision: what a GPU computes in: "fp32", "tf32" or "fp16".
        launch: how a GPU that is not attached is thought to be given its kernels: by one CUDA graph ("graph"), or one
            by one into streams ("streams").
        budget_s: the seconds for everything; None for no limit.
        profile_db: the profile database; by default the user's own.
        resume: whether the latencies in the database are used.
        gap_percent: the gap that a search may leave, see `OptimizeSettings`.
        skip_broken: whether a model that cannot be run is left out; else it ends the job.
    """

    device: str = "auto"
    policy: PolicyName = "auto"
    memory_nbytes: int | None = None
    shared_inputs: tuple[str, ...] = ()
    threads: int | None = None
    precision: str = DEFAULT_PRECISION
    launch: str = DEFAULT_LAUNCH
    budget_s: float | None = None
    profile_db: Path | None = None
    resume: bool = True
    skip_broken: bool = False
    gap_percent: float | None = None

    @property
    def opening(self) -> OpenSettings:
        """How models are to be opened on the device."""
        return OpenSettings(
            self.threads, self.precision, launch=self.launch, resume=self.resume, gap_percent=self.gap_percent
        )

    @property
    def batches(self) -> bool:
        """Whether operators may become one."""
        return self.policy not in ("serial", "packed")
