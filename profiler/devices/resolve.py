"""What `--device` means on this machine: the only place that asks of which kind a device is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from iosched.models.errors import DeviceError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.analytic.device import PaperGpu
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.facts import cpu_facts
from iosched.profiler.devices.cuda.attached import attach
from iosched.profiler.devices.cuda.device import CudaDevice
from iosched.profiler.devices.cuda.facts import cuda_facts
from iosched.profiler.devices.cuda.probe import usable_names
from iosched.profiler.devices.device import Device, OpenSettings
from iosched.profiler.devices.facts import DeviceFacts
from iosched.profiler.devices.gpus import GpuSpec, gpu_called, gpu_named, gpu_names
from iosched.profiler.devices.throughput import Throughputs, gpu_throughputs
from iosched.runtime.cpu.backend import cpu_count
from iosched.runtime.cuda.backend import CudaBackend
from iosched.scheduler.document import ScheduleDocument

HERE = ("auto", "cpu")
_CUDA = re.compile(r"cuda(?::(\d+))?")


def attached_names() -> tuple[str, ...]:
    """Names of the GPUs of this machine by index, "" for one that cannot be used; see `probe.usable_names`."""
    return usable_names()


def facts_here() -> tuple[DeviceFacts, ...]:
    """What this machine has to say of each kind of device, usable or not."""
    return cpu_facts(), cuda_facts()


def check_name(device: str) -> None:
    """Accepts what `resolve` does, without a look at the machine.

    Raises:
        UsageError: no such device; names what comes close, and the list.
    """
    planned_gpu(device)


def resolve(device: str, model: Model | None = None) -> Device:
    """The device that `--device` means.

    Args:
        model: what is to run there, where it is known: `auto` takes no GPU for one that the GPU runtime cannot place.

    Raises:
        UsageError: no such device; names what comes close, and the list.
        DeviceError: a GPU was asked for that is not there or cannot be used; says what to do.
    """
    gpu = planned_gpu(device)
    index = attached_index(device)
    if index is not None and not (device == "auto" and model is not None and not CudaBackend.supports(model)):
        return CudaDevice(attach(index))
    return CpuDevice() if gpu is None else PaperGpu(gpu)


def is_cpu(device: str) -> bool:
    """Whether `resolve` takes this machine's cores.

    Raises:
        UsageError: no such device; names what comes close, and the list.
    """
    return attached_index(device) is None and planned_gpu(device) is None


def runs_on_gpu(device: str, document: ScheduleDocument | None) -> bool:
    """Whether `runner` takes an attached GPU: where one is asked for, or a schedule was made on one."""
    made_on_gpu = document is not None and document.device_kind == "cuda"
    return attached_index(device) is not None and (device != "auto" or made_on_gpu)


def runner(device: str, document: ScheduleDocument | None) -> Device:
    """The device that `--device` means for a schedule that is to be run; `auto` takes the kind it was made on.

    Raises:
        UsageError: no such device; names what comes close, and the list.
        DeviceError: a GPU was asked for that is not there or cannot be used; says what to do.
    """
    if device == "auto" and not runs_on_gpu(device, document):
        return CpuDevice()
    return resolve(device)


def runner_name(device: str, document: ScheduleDocument | None) -> str:
    """The name of what a schedule runs on; "" for a GPU that cannot be used. Opens nothing."""
    if not runs_on_gpu(device, document):
        return CpuDevice().name
    index = attached_index(device) or 0
    return dict(enumerate(attached_names())).get(index, "")


def recorded(document: ScheduleDocument) -> tuple[Device, OpenSettings]:
    """The device that a schedule was made for, and how a model is opened there as it was then.

    Raises:
        DeviceError: it is a GPU that is not here, or one for which there is no specification.
    """
    precision = document.precision
    if document.cost == "analytic":
        gpu = gpu_called(document.device_name)
        if gpu is None:
            raise DeviceError(f"the schedule is for {document.device_name}, which this version has no specification of")
        return PaperGpu(gpu), OpenSettings(precision=precision)
    if document.device_kind != "cuda":
        return CpuDevice(), OpenSettings(threads=_recorded_lanes(document))
    attached = attach(attached_index(document.device_name) or 0)
    if attached.name != document.device_name:
        raise DeviceError(f"the schedule was measured on {document.device_name}, and here is only {attached.name}")
    return CudaDevice(attached), OpenSettings(precision=precision)


def throughputs(model: Model, document: ScheduleDocument) -> Throughputs:
    """For stages of `document`, a schedule of `model`; of a device or precision that is not known, only the speed."""
    if document.cost != "analytic" and document.device_kind == "cuda":
        return gpu_throughputs(model.graph, document.device_name, document.precision)
    if document.cost != "analytic":
        return Throughputs(model.graph)
    try:
        device, settings = recorded(document)
        return device.open(model, settings, None).throughputs
    except (DeviceError, UsageError):
        return Throughputs(model.graph)


def planned_gpu(device: str) -> GpuSpec | None:
    """The GPU to plan for without having it; None for this machine's own devices (`auto`, `cpu` and `cuda[:N]`).

    Raises:
        UsageError: no such device; names what comes close, and the list.
    """
    name = device.strip().lower()
    if not name:
        raise UsageError("--device is empty: give auto, cpu, or the name of a GPU to plan for")
    if name in HERE or _CUDA.fullmatch(name):
        return None
    found = gpu_named(name) or gpu_called(device.strip())
    if found is None:
        raise UsageError(_unknown(device, name))
    return found


def attached_index(device: str, names: Callable[[], Sequence[str]] | None = None) -> int | None:
    """The CUDA index of the attached GPU that `device` means; None where it means another device.

    `cuda[:N]` always means one, whether it is there or not; the name of a GPU means one that is here by that name; and
    `auto` the first one that can be used.

    Args:
        names: asked for the GPUs by index, "" for one that cannot be used; `attached_names` by default.
    """
    name = device.strip().lower()
    if match := _CUDA.fullmatch(name):
        return int(match[1] or 0)
    if name == "cpu":
        return None
    wanted = "" if name == "auto" else name
    found = enumerate((names or attached_names)())
    return next((index for index, gpu in found if gpu and wanted in gpu.lower()), None)


def _recorded_lanes(document: ScheduleDocument) -> int:
    lanes = document.runtime.get("lanes")
    return min(lanes, cpu_count()) if isinstance(lanes, int) and lanes > 0 else cpu_count()


def _unknown(device: str, name: str) -> str:
    known = (*HERE, *gpu_names())
    close = get_close_matches(name, known, n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    return f"there is no device {device!r}{hint}\nDevices are auto, cpu, and GPUs to plan for: {', '.join(gpu_names())}"
