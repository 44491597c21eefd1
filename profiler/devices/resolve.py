"""Resolves `--device`: the only file that asks for the kind of a device.

A kind is imported on demand: on a CPU nothing of CUDA and of the analytic model is imported.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from iosched.models.errors import DeviceError, UsageError
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime.cpu.remarks import remarks_before as core_remarks_before
from iosched.scheduler.precision import DEFAULT_PRECISION

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.profiler.devices.analytic.device import SimulatedGpu
    from iosched.profiler.devices.cuda.device import CudaDevice
    from iosched.profiler.devices.facts import DeviceFacts
    from iosched.profiler.devices.imported_stages import ImportedProfile
    from iosched.profiler.devices.kind import DeviceKind
    from iosched.profiler.devices.profiled_device import Fp16Gain, ProfiledDevice
    from iosched.profiler.devices.throughput import Throughputs
    from iosched.profiler.store.database import ProfileDatabase
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.precision import PrecisionName
    from iosched.scheduler.schedule import Schedule, Stage
    from iosched.scheduler.unit_graph import Unit

_CPU, _CUDA, _ANALYTIC = "cpu", "cuda", "analytic"
KINDS: Mapping[str, str] = {_CUDA: "cuda", _CPU: "cpu", _ANALYTIC: "cuda"}
"""`DeviceKind.key` by folder. An attached GPU precedes a specification of the same name."""


def device_facts() -> tuple[DeviceFacts, ...]:
    """Facts about each kind of device on this machine, usable or not, the CPU first."""
    kinds = map(_kind, (_CPU, _CUDA, _ANALYTIC))
    return tuple(kind.facts() for kind in kinds if kind.facts is not None)


def check_name(device: str) -> None:
    """Raises a UsageError for a text that `resolve` accepts on no machine; lists all and similar ones."""
    if not device.strip():
        raise UsageError("--device is empty: use auto, cpu or the name of a GPU")
    if not any(kind.knows(device) for kind in _kinds(device)):
        raise UsageError(_unknown(device))


def resolve(device: str, model: Model | None = None) -> ProfiledDevice:
    """The device that `--device` means; `auto` means no GPU for a `model` that the GPU runtime does not support.

    Raises:
        UsageError: there is no such device; lists all, and similar names.
        DeviceError: the GPU is not attached or cannot be used, or this is not Linux.
    """
    return _opened(_kind_of(device, model), device)


def remarks(device: str) -> tuple[str, ...]:
    """Sentences on why `resolve` does not return the attached devices of that name."""
    from iosched.runtime.cuda.gpu.extras import query_driver

    return () if _is_cpu(device) or not query_driver().gpus else tuple(_kind(_CUDA).remarks(device))


def remarks_before(device: str, threads: int | None) -> tuple[str, ...]:
    """Sentences for the user before measurements on this device and number of threads; raises as `check_name`."""
    return core_remarks_before(threads) if is_measured_on_cpu(device) and not_linux() is None else ()


def is_measured_on_cpu(device: str) -> bool:
    """Whether `resolve` returns the CPU of this machine; raises as `check_name`."""
    return _kind_of(device).key == KINDS[_CPU]


def speed_text(kind: str) -> str:
    """The speed that sums of measured stages refer to, in words; "" for the present one. See `DeviceInfo.kind`."""
    return next((each.speed for each in _kinds_called(kind)), "")


def runner(device: str, document: ScheduleDocument | None) -> ProfiledDevice:
    """The device to run a schedule on; `auto` means a device of the kind that it was made on. Raises as `resolve`."""
    return _opened(_runner_kind(device, document), device)


def runner_name(device: str, document: ScheduleDocument | None) -> str:
    """The name of the device of `runner`, without opening it; "" if it cannot be used."""
    return _runner_kind(device, document).name(device)


def runner_design(device: str, document: ScheduleDocument | None) -> Mapping[str, str]:
    """The design of the device of `runner`, without opening it; see `DeviceInfo.design`."""
    return _runner_kind(device, document).design()


def unscheduled_text(device: str) -> str:
    """The way that the device of `runner` runs a model without a schedule."""
    return _runner_kind(device, None).unscheduled


def recorded(document: ScheduleDocument) -> tuple[ProfiledDevice, OpenSettings]:
    """The device and the settings that a schedule was made with.

    Raises:
        DeviceError: the device is not attached or unknown, or this is not Linux.
    """
    device, settings = _recorded(document)
    return device, replace(settings, units=document.units)


def _recorded(document: ScheduleDocument) -> tuple[ProfiledDevice, OpenSettings]:
    made = (kind.made(document) for kind in _kinds_called(document.device_kind))
    found = next((each for each in made if each is not None), None)
    device, settings = found or (_kind(_CPU).device("cpu"), OpenSettings())
    return _usable(device), settings


def throughputs(model: Model, document: ScheduleDocument) -> Throughputs:
    """The throughputs of stages of `document`, without a peak for unknown devices or precisions."""
    from iosched.profiler.devices.throughput import Throughputs, gpu_throughputs

    if document.cost != "analytic" and document.device_kind == "cuda":
        return gpu_throughputs(model.graph, document.device_name, document.precision)
    if document.cost != "analytic":
        return Throughputs(model.graph)
    try:
        device, settings = _recorded(document)  # stages in the file name operators
        if device.info.cost_kind != "analytic":  # the file is damaged: only GPUs have such costs
            return Throughputs(model.graph)
        found = device.open(model, settings, None).details.throughputs
        return found if document.measured_share is None else found.measured
    except (DeviceError, UsageError):
        return Throughputs(model.graph)


def _kind(folder: str) -> DeviceKind:
    return cast("DeviceKind", import_module(f"iosched.profiler.devices.{folder}.device").KIND)


def _kinds(device: str) -> Iterator[DeviceKind]:
    """The kinds that can claim a text of `--device`; attached GPUs only with their packages."""
    if _has_gpu_packages() or device.strip().lower().startswith("cuda"):
        yield _kind(_CUDA)
    yield _kind(_CPU)
    yield _kind(_ANALYTIC)


def _kinds_called(key: str) -> Iterator[DeviceKind]:
    return (_kind(folder) for folder, each in KINDS.items() if each == key)


def _has_gpu_packages() -> bool:
    return find_spec("cupy") is not None


def _is_cpu(device: str) -> bool:
    return device.strip().lower() == "cpu"


def _kind_of(device: str, model: Model | None = None) -> DeviceKind:
    if _is_cpu(device):
        return _kind(_CPU)
    check_name(device)
    return next(kind for kind in _kinds(device) if kind.claims(device, model))


def _opened(kind: DeviceKind, device: str) -> ProfiledDevice:
    found = _usable(kind.device(device))
    return (
        replace(cast("SimulatedGpu", found), remarks=remarks(device)) if found.info.cost_kind == "analytic" else found
    )


def _usable(device: ProfiledDevice) -> ProfiledDevice:
    """The device; simulated GPUs use measurements of attached ones, and these use schedules of simulated ones."""
    if device.info.cost_kind == "analytic":
        return replace(cast("SimulatedGpu", device), find_imported=_imported_profile)
    check_system()
    return replace(cast("CudaDevice", device), suggest=_simulated_stages) if device.info.kind == "cuda" else device


def _imported_profile(database: ProfileDatabase, model: Model, gpu: str, precision: PrecisionName) -> ImportedProfile:
    from iosched.profiler.devices.cuda.imported_gpu import imported_profile

    return imported_profile(database, model, gpu, precision)


def _simulated_stages(model: Model, gpu: str, precision: str, units: tuple[Unit, ...]) -> tuple[Stage, ...]:
    from iosched.profiler.devices.gpus import spec_of

    spec = spec_of(gpu)
    if spec is None:
        return ()
    from iosched.profiler.devices.analytic.device import SimulatedGpu
    from iosched.scheduler.search import search

    opened = SimulatedGpu(spec).open(model, OpenSettings(precision=precision, units=units))
    return tuple(search(opened.graph, opened.cost, effort=opened.effort).schedule.stages)


def fp16_gain(device: ProfiledDevice, model: Model, settings: OpenSettings, schedule: Schedule) -> Fp16Gain | None:
    """Speedup of fp16 over fp32 by the analytic model of this GPU; None if it is unknown or uncertain."""
    if device.info.kind != KINDS[_CUDA] or settings.precision != DEFAULT_PRECISION:
        return None
    from iosched.profiler.devices.analytic import device as analytic
    from iosched.profiler.devices.gpus import card_of

    spec = card_of(device.info.name)
    return None if spec is None else analytic.fp16_gain(spec, model, settings, schedule)


def _runner_kind(device: str, document: ScheduleDocument | None) -> DeviceKind:
    if device != "auto":
        return _kind_of(device)
    if document is None or document.device_kind == KINDS[_CPU]:
        return _kind(_CPU)
    return next((kind for kind in _kinds_called(document.device_kind) if kind.claims(device, None)), _kind(_CPU))


def _unknown(device: str) -> str:
    from iosched.profiler.devices.gpus import gpu_keys

    close = get_close_matches(device.strip().lower(), ("auto", "cpu", *gpu_keys()), n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    return f"unknown device {device!r}{hint}\nDevices are auto, cpu, cuda[:N] and the GPUs {', '.join(gpu_keys())}"


_NAMES = {"Darwin": "macOS"}


def not_linux() -> str | None:
    """The name of this operating system; None on Linux."""
    system = platform.system()
    return None if system == "Linux" else _NAMES.get(system, system or "an unknown system")


def check_system() -> None:
    """Raises a DeviceError unless this is Linux, whose interfaces pin threads and watch processes and processors."""
    if (system := not_linux()) is not None:
        raise DeviceError(
            f"running and measuring models needs Linux, and this is {system}: simulate a GPU instead (--device v100),"
            " or use a container, a virtual machine or WSL with Linux"
        )
