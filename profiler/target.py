"""What `--device` means on this machine."""

from __future__ import annotations

import re
from difflib import get_close_matches

from iosched.models.errors import DeviceError, UsageError
from iosched.profiler.gpus import GpuSpec, gpu_named, gpu_names

HERE = ("auto", "cpu")


def planned_gpu(device: str) -> GpuSpec | None:
    """The GPU to plan for without having it; None for this machine's CPU (`auto` and `cpu`).

    Raises:
        DeviceError: the device is one that is attached (`cuda`), which this version has no runtime for.
        UsageError: no such device; names what comes close, and the list.
    """
    name = device.strip().lower()
    if not name:
        raise UsageError("--device is empty: give auto, cpu, or the name of a GPU to plan for")
    if name in HERE:
        return None
    if re.fullmatch(r"cuda(:\d+)?", name):
        raise DeviceError(
            f"this version of iosched has no runtime for device {device!r}: use --device cpu, or name the GPU to plan"
            f" for it without running it: {', '.join(gpu_names())}"
        )
    found = gpu_named(name) or gpu_called(device.strip())
    if found is None:
        raise UsageError(_unknown(device, name))
    return found


def require_cpu(device: str) -> None:
    """Accepts the devices that this version can measure and run on: `auto` and `cpu`.

    Raises:
        DeviceError: the device is a GPU, which this version has no runtime for.
        UsageError: no such device.
    """
    gpu = planned_gpu(device)
    if gpu is not None:
        raise DeviceError(
            f"{gpu.name} is not here: 'iosched optimize --device {gpu.key}' plans for it, but nothing can be run or"
            " measured on it; use --device cpu"
        )


def gpu_called(name: str) -> GpuSpec | None:
    """The GPU of that full name, as schedules give it ("Tesla V100-SXM2-16GB"); None where it is not known."""
    specs = (gpu_named(key) for key in gpu_names())
    return next((spec for spec in specs if spec is not None and spec.name.lower() == name.lower()), None)


def _unknown(device: str, name: str) -> str:
    known = (*HERE, *gpu_names())
    close = get_close_matches(name, known, n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    return f"there is no device {device!r}{hint}\nDevices are auto, cpu, and GPUs to plan for: {', '.join(gpu_names())}"
