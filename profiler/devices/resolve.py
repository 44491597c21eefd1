"""What `--device` means on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from iosched.models.errors import DeviceError, UsageError
from iosched.profiler.devices.gpus import GpuSpec, gpu_named, gpu_names

HERE = ("auto", "cpu")
_CUDA = re.compile(r"cuda(?::(\d+))?")


def attached_names() -> tuple[str, ...]:
    """Names of the GPUs of this machine by index, "" for one that cannot be used; see `gpu_probe.usable_names`."""
    from iosched.profiler.devices.cuda.probe import usable_names

    return usable_names()


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


def require_cpu(device: str) -> None:
    """Accepts `auto` and `cpu`, for what is done on the CPU alone.

    Raises:
        DeviceError: the device is a GPU.
        UsageError: no such device.
    """
    if _CUDA.fullmatch(device.strip().lower()):
        raise DeviceError(f"this is done on the CPU alone, not on {device!r}: use --device cpu")
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
