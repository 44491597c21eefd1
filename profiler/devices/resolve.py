"""What `--device` means on this machine: the only place that asks of which kind a device is."""

from __future__ import annotations

from difflib import get_close_matches

from iosched.models.errors import DeviceError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.analytic.device import KIND as PAPER
from iosched.profiler.devices.cpu.device import KIND as CPU
from iosched.profiler.devices.cuda.device import KIND as CUDA
from iosched.profiler.devices.device import Device, OpenSettings
from iosched.profiler.devices.facts import DeviceFacts
from iosched.profiler.devices.gpus import gpu_keys
from iosched.profiler.devices.kind import Kind
from iosched.profiler.devices.throughput import Throughputs, gpu_throughputs
from iosched.scheduler.document import ScheduleDocument

KINDS: tuple[Kind, ...] = (CUDA, CPU, PAPER)
"""To add a kind of device: its folder, and its `KIND` here. An attached GPU comes before a paper one of its name."""


def facts_here() -> tuple[DeviceFacts, ...]:
    """What this machine has to say of each kind of device, usable or not; first of the CPU, which every machine has."""
    return tuple(kind.facts() for kind in sorted(KINDS, key=lambda kind: kind is not CPU) if kind.facts is not None)


def check_name(device: str) -> None:
    """Accepts what `resolve` does, without a look at the machine.

    Raises:
        UsageError: no such device; names what comes close, and the list.
    """
    if not device.strip():
        raise UsageError("--device is empty: give auto, cpu, or the name of a GPU to plan for")
    if not any(kind.knows(device) for kind in KINDS):
        raise UsageError(_unknown(device))


def resolve(device: str, model: Model | None = None) -> Device:
    """The device that `--device` means.

    Args:
        model: what is to run there, where it is known: `auto` takes no GPU for one that the GPU runtime cannot place.

    Raises:
        UsageError: no such device; names what comes close, and the list.
        DeviceError: a GPU was asked for that is not there or cannot be used; says what to do.
    """
    return _kind_of(device, model).device(device)


def is_measured_on_cpu(device: str) -> bool:
    """Whether `resolve` takes this machine's cores.

    Raises:
        UsageError: no such device; names what comes close, and the list.
    """
    return _kind_of(device) is CPU


def runner(device: str, document: ScheduleDocument | None) -> Device:
    """The device that a schedule is to be run on; `auto` takes one of the kind that it was made on.

    Raises:
        UsageError: no such device; names what comes close, and the list.
        DeviceError: a GPU was asked for that is not there or cannot be used; says what to do.
    """
    return _runner_kind(device, document).device(device)


def runner_name(device: str, document: ScheduleDocument | None) -> str:
    """The name of what `runner` takes, without opening it; "" where it cannot be used."""
    return _runner_kind(device, document).name(device)


def unscheduled_text(device: str) -> str:
    """How a model without a schedule runs on what `runner` takes, in words."""
    return _runner_kind(device, None).unscheduled


def recorded(document: ScheduleDocument) -> tuple[Device, OpenSettings]:
    """The device that a schedule was made for, and how a model is opened there as it was then.

    Raises:
        DeviceError: it is a GPU that is not here, or one for which there is no specification.
    """
    made = (kind.made(document) for kind in KINDS)
    return next((found for found in made if found is not None), (CPU.device("cpu"), OpenSettings()))


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


def _kind_of(device: str, model: Model | None = None) -> Kind:
    check_name(device)
    return next(kind for kind in KINDS if kind.claims(device, model))


def _runner_kind(device: str, document: ScheduleDocument | None) -> Kind:
    if device != "auto":
        return _kind_of(device)
    made_on = CPU.key if document is None else document.device_kind
    return next((kind for kind in KINDS if kind.key == made_on and kind.claims(device, None)), CPU)


def _unknown(device: str) -> str:
    close = get_close_matches(device.strip().lower(), ("auto", "cpu", *gpu_keys()), n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    return f"there is no device {device!r}{hint}\nDevices are auto, cpu, and GPUs to plan for: {', '.join(gpu_keys())}"
