"""The CPU of this machine as a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.kind import DeviceKind
from iosched.profiler.devices.open_settings import OpenSettings, refuse_for_attached_gpus, refuse_for_simulated_gpus
from iosched.runtime.cores import allowed_cpus, cpu_count
from iosched.runtime.cpu.precision import check_precision
from iosched.runtime.cpu.shipped import is_by_schedule, shipped_executor
from iosched.runtime.device import DeviceInfo
from iosched.runtime.executor import Executor
from iosched.runtime.memory import check_fits, machine_nbytes
from iosched.runtime.processor import cpu_name, read_processor
from iosched.runtime.topology import default_threads
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.teams import DEFAULT_OBJECTIVE

if TYPE_CHECKING:
    from pathlib import Path

    from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
    from iosched.profiler.devices.cpu.open import OpenOnCpu
    from iosched.profiler.devices.facts import DeviceFacts
    from iosched.profiler.devices.profiled_device import OpenModel, ProfiledDevice
    from iosched.profiler.store.database import ProfileDatabase
    from iosched.runtime.cpu.opened_plan import OpenedPlan
    from iosched.runtime.cpu.shared_cores import CpuCores
    from iosched.runtime.plan_files import WrittenPlan
    from iosched.runtime.reference import SelfCheck


@dataclass(frozen=True)
class CpuDevice:
    """The CPU of this machine; see `ProfiledDevice`."""

    @cached_property
    def info(self) -> DeviceInfo:
        """The processor's name, design, cores and instructions, and the machine's memory."""
        processor = read_processor()
        about = {"cores": str(len(allowed_cpus())), "instructions": processor.instruction_set}
        return DeviceInfo("cpu", "cpu", processor.name, "measured", processor.design, machine_nbytes(), about)

    def checks(self) -> Sequence[SelfCheck]:
        """Checks of the compiled executor and of a small network."""
        from iosched.runtime.cpu.self_checks import cpu_checks

        return cpu_checks()

    def check(self, settings: OpenSettings) -> None:
        """Raises a UsageError for settings for GPUs, and a DeviceError if the precision needs a missing library."""
        refuse_for_attached_gpus(settings)
        refuse_for_simulated_gpus(settings)
        if settings.objective != DEFAULT_OBJECTIVE and settings.precision != DEFAULT_PRECISION:
            raise UsageError(f"--objective {settings.objective} computes in the model's own types: omit --precision")
        check_precision(settings.precision)

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None,
        *,
        alongside: OpenModel | None = None,
    ) -> OpenOnCpu:
        """Opens `model` on this CPU; see `ProfiledDevice.open`."""
        from iosched.profiler.devices.cpu.open import open_on_cpu

        assert database is not None
        return open_on_cpu(self, model, settings, database, alongside)

    def plain(self, model: Model, settings: OpenSettings) -> OnnxruntimeBaseline | None:
        """onnxruntime on the same cores; None in a precision that it does not have."""
        if settings.precision != DEFAULT_PRECISION:
            return None
        from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline

        return OnnxruntimeBaseline(model, min(settings.threads or cpu_count(), cpu_count()))

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """Opens `model` in the way that shipped, see `shipped_executor`.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed, or there is too little memory.
        """
        check_fits(model.graph)
        is_shared = document is None or document.teams is not None or not is_by_schedule(document)
        return shipped_executor(model, document, threads or (cpu_count() if is_shared else default_threads()))

    def shared_cores(self, count: int | None = None) -> CpuCores:
        """See `SharesCores`."""
        from iosched.runtime.cpu.shared_cores import CpuCores

        return CpuCores(count or cpu_count())

    def check_plans(self) -> None:
        """See `WritesPlans`."""
        from iosched.runtime.cpu.provider import plugin_path

        plugin_path()

    def open_plan(self, path: Path) -> OpenedPlan:
        """See `WritesPlans`."""
        from iosched.runtime.cpu.opened_plan import OpenedPlan

        return OpenedPlan(path)

    def write_plan(
        self,
        path: Path,
        exported: Path,
        scheduled: Sequence[tuple[Model, ScheduleDocument]],
        threads: int | None,
        *,
        dynamic_batch: bool,
    ) -> WrittenPlan:
        """See `WritesPlans`."""
        from iosched.profiler.devices.cpu.plans import write_cpu_plan

        return write_cpu_plan(path, exported, scheduled, threads or default_threads(), dynamic_batch=dynamic_batch)

    def kernel_calls(self, model: Model) -> Mapping[str, Mapping[str, int]]:
        """See `CountsKernelCalls`. Raises as `executor` does."""
        from iosched.runtime.cpu.self_checks import kernel_calls

        return kernel_calls(model)


def _facts() -> DeviceFacts:
    from iosched.profiler.devices.cpu.facts import cpu_facts

    return cpu_facts()


def _made(document: ScheduleDocument) -> tuple[ProfiledDevice, OpenSettings] | None:
    if document.cost == "analytic" or document.device_kind != "cpu":
        return None
    lanes = document.runtime.get("lanes")
    threads = min(lanes, cpu_count()) if isinstance(lanes, int) and lanes > 0 else default_threads()
    return CpuDevice(), OpenSettings(threads=threads)


KIND = DeviceKind(
    key="cpu",
    knows=lambda text: text.strip().lower() in ("auto", "cpu"),
    claims=lambda text, model: text.strip().lower() in ("auto", "cpu"),
    device=lambda text: CpuDevice(),
    name=lambda text: cpu_name(),
    design=lambda: read_processor().design,
    made=_made,
    unscheduled="on plain onnxruntime",
    facts=_facts,
    speed="at the speed of the machine's first measurements",
)
