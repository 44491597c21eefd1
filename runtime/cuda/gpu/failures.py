"""Translates errors of CUDA, CuPy and cuDNN."""

from __future__ import annotations

import ctypes

from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError
from iosched.runtime.cuda.gpu.extras import extra_for, extra_with, query_driver, version_text, way_to_run

_NO_MEMORY = 2
_NO_DRIVER, _NO_GPU, _UNAVAILABLE = 35, 100, 46
_FATAL = frozenset({4, 100, 101, 201, 214, 219, 220, 700, 702, 709, 710, *range(714, 720), 721, 999})
"""CUDA statuses after which all calls fail: a kernel corrupted memory, hung or was illegal, or the GPU is gone."""


def translated(error: Exception) -> IoschedError:
    """The error to raise for one of CuPy's or cuDNN's."""
    status = getattr(error, "status", None)
    kind = type(error).__name__
    if kind == "NVRTCError":  # its statuses are not CUDA's
        return ExecutionError(f"cannot compile a CUDA kernel: {first_line(error)}")
    if status == _NO_MEMORY or kind == "OutOfMemoryError":
        return DeviceError("out of GPU memory: use a smaller batch size, or stop other programs on this GPU")
    if status == _UNAVAILABLE:
        return DeviceError(
            "the GPU is busy or unavailable, perhaps because another process has it in exclusive mode: see `nvidia-smi`"
        )
    if status in _FATAL:
        return DeviceLostError(
            f"the GPU stopped working: {first_line(error)}\n"
            "Measurements so far are saved. Check the GPU with `nvidia-smi` and `dmesg`, then run the command again."
        )
    if kind == "CompileException" and "cannot open source file" in str(error):
        return DeviceError(f"CUDA headers are not installed ({_first_error(str(error))}); {how_to_install()}")
    if kind == "CompileException":
        return ExecutionError(f"cannot compile a CUDA kernel: {_first_error(str(error))}")
    if status is None and ("dlopen" in str(error) or "load" in str(error) or isinstance(error, ImportError)):
        return DeviceError(f"cannot load a CUDA library ({first_line(error)}); {how_to_install()}")
    return ExecutionError(f"GPU error: {first_line(error)}")


def no_gpu_error(error: Exception, driver: int, runtime: int) -> DeviceError:
    """The error for a failed count of GPUs.

    Args:
        driver: newest CUDA of the driver (12040 is 12.4); 0 without a driver.
        runtime: CUDA of CuPy.
    """
    status = getattr(error, "status", None)
    if not driver:
        return DeviceError(
            "no NVIDIA driver found: install one, or use `--device cpu` or the name of a GPU to simulate"
        )
    if status == _NO_DRIVER or driver // 1000 < runtime // 1000:
        versions = f"the driver supports CUDA {version_text(driver)}, but CuPy needs CUDA {version_text(runtime)}"
        return DeviceError(f"{versions}: {_driver_fix(driver, runtime)}")
    if status == _NO_GPU:
        return DeviceError(
            "the driver finds no GPU: none is attached, or CUDA_VISIBLE_DEVICES hides it; see `iosched devices`"
        )
    return DeviceError(f"no usable GPU: {first_line(error)}; see `nvidia-smi`")


def how_to_install(index: int | None = None) -> str:
    """Clause: how to install the packages for a GPU."""
    return query_driver().way_to_run(index)


def _driver_fix(driver: int, runtime: int) -> str:
    capabilities, needed = query_driver().capabilities, extra_with(runtime)
    if needed is None:
        return "update the NVIDIA driver"
    if capabilities and max(capabilities) < needed.least_capability:
        return way_to_run(driver, max(capabilities))
    older = extra_for(driver, capabilities or [needed.least_capability])
    newer = f"update the NVIDIA driver to {needed.least_driver} or newer"
    return newer if older is None else f"{newer}, or {older.way}"


def kept_if_lost(error: IoschedError) -> IoschedError:
    """Returns `error`, and keeps it alive forever if the GPU is lost.

    CuPy's objects print a traceback when they are freed on a lost GPU, graphs even at exit; the error's traceback
    keeps them alive.
    """
    if isinstance(error, DeviceLostError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))
    return error


def first_line(error: BaseException) -> str:
    """First line of the message, or the exception's type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
