"""Errors for people in place of those that CUDA, CuPy and cuDNN raise."""

from __future__ import annotations

import ctypes

from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError
from iosched.runtime.cuda.gpu.extras import extra_for, extra_with, version_text, way_to_run
from iosched.runtime.cuda.gpu.library import look

_NO_MEMORY = 2
_NO_DRIVER, _NO_GPU = 35, 100
_FATAL = frozenset({4, 46, 100, 101, 201, 214, 219, 220, 700, 702, 709, 710, *range(714, 720), 721, 999})
"""Statuses after which every further call fails: a kernel broke memory, hung or was illegal, or the GPU is gone.

CUDA's runtime and its driver number these alike.
"""


def meaning(error: Exception) -> IoschedError:
    """The error to raise for one of CuPy's or cuDNN's."""
    status = getattr(error, "status", None)
    kind = type(error).__name__
    if status == _NO_MEMORY or kind == "OutOfMemoryError":
        return DeviceError("the GPU has not enough memory left: try a smaller batch, or end what else runs on it")
    if status in _FATAL:
        return DeviceLostError(
            f"the GPU stopped working: {first_line(error)}\n"
            "What was measured before is kept; see `nvidia-smi` and the kernel's log for its state, then run again."
        )
    if kind == "CompileException" and "cannot open source file" in str(error):
        return DeviceError(f"CUDA's headers are not installed ({_first_complaint(str(error))}); {how_to_install()}")
    if kind == "CompileException":
        return ExecutionError(f"a kernel does not compile: {_first_complaint(str(error))}")
    if status is None and ("dlopen" in str(error) or "load" in str(error) or isinstance(error, ImportError)):
        return DeviceError(f"a library of CUDA cannot be loaded ({first_line(error)}); {how_to_install()}")
    return ExecutionError(f"the GPU failed: {first_line(error)}")


def no_gpu(error: Exception, driver: int, runtime: int) -> DeviceError:
    """Why no GPU could be counted.

    Args:
        driver: newest CUDA that the driver supports, as CUDA numbers versions (12040 is 12.4); 0 without a driver.
        runtime: CUDA that CuPy was built for.
    """
    status = getattr(error, "status", None)
    if not driver:
        return DeviceError(
            "no NVIDIA driver was found on this machine: install it, or use --device cpu or the name of a GPU"
        )
    if status == _NO_DRIVER or driver // 1000 < runtime // 1000:
        versions = f"the driver is for CUDA {version_text(driver)}, and CuPy for CUDA {version_text(runtime)}"
        return DeviceError(f"{versions}: {_way_out(driver, runtime)}")
    if status == _NO_GPU:
        return DeviceError(
            "the driver finds no GPU: there is none, or CUDA_VISIBLE_DEVICES hides it; see `iosched devices`"
        )
    return DeviceError(f"no GPU can be used: {first_line(error)}; see `nvidia-smi`")


def how_to_install(index: int | None = None) -> str:
    """What to do where packages for a GPU are missing: a clause for people.

    Args:
        index: CUDA's number of the GPU, if one is meant.
    """
    return look().way_to_run(index)


def _way_out(driver: int, runtime: int) -> str:
    """What to do where the driver is too old for CuPy's CUDA."""
    capabilities, needed = look().capabilities, extra_with(runtime)
    if needed is None:
        return "update NVIDIA's driver"
    if capabilities and max(capabilities) < needed.least_capability:
        return way_to_run(driver, max(capabilities))
    older = extra_for(driver, capabilities or [needed.least_capability])
    newer = f"update NVIDIA's driver to {needed.least_driver} or newer"
    return newer if older is None else f"{newer}, or {older.way}"


def keep_if_lost(error: IoschedError) -> IoschedError:
    """Returns `error`; one that says that the GPU is lost is kept for ever, and with it all that was on that GPU.

    CuPy's objects complain on stderr, each with a traceback, when they are given back to a GPU that is lost, graphs
    even at the end of the process. So the error, whose traceback holds them, is never freed.
    """
    if isinstance(error, DeviceLostError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))
    return error


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type's name where there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _first_complaint(log: str) -> str:
    """The first error in the log of a compiler."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
