"""Exceptions of CUDA, CuPy and cuDNN become readable errors: the problem and the fix."""

from __future__ import annotations

import pytest
import standin_driver
from host_cuda import needs_compiler

from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError
from iosched.runtime.cuda.gpu.failures import no_gpu_error, translated


class CUDARuntimeError(RuntimeError):
    """As CuPy makes them."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NVRTCError(CUDARuntimeError):
    """NVRTC's, whose status codes differ from CUDA's."""


class OutOfMemoryError(MemoryError):
    """CuPy's, of its memory pool."""


class CompileException(Exception):  # noqa: N818 - CuPy's name
    """NVRTC's log."""


_CUDA12 = "in a separate environment, run in a clone of iosched: pip install '.[cuda12]'"
LOG = """\
kern.cu(3): error: identifier "undefined" is undefined

1 error detected in the compilation of "kern.cu".
"""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory"), DeviceError, "smaller batch"),
        (OutOfMemoryError("Out of memory allocating 1,024 bytes"), DeviceError, "smaller batch"),
        (CUDARuntimeError(700, "cudaErrorIllegalAddress: an illegal memory access"), DeviceLostError, "IllegalAddress"),
        (CUDARuntimeError(719, "cudaErrorLaunchFailure: unspecified"), DeviceLostError, "nvidia-smi"),
        (CUDARuntimeError(999, "cudaErrorUnknown: unknown error"), DeviceLostError, "stopped working"),
        (CUDARuntimeError(46, "cudaErrorDevicesUnavailable: busy or unavailable"), DeviceError, "exclusive mode"),
        (NVRTCError(2, "NVRTC_ERROR_PROGRAM_CREATION_FAILURE (2)"), ExecutionError, "PROGRAM_CREATION_FAILURE"),
        (NVRTCError(4, "NVRTC_ERROR_INVALID_PROGRAM (4)"), ExecutionError, "cannot compile a CUDA kernel: NVRTC"),
        (CUDARuntimeError(904, "cudaErrorStreamCaptureUnjoined: capture"), ExecutionError, "Unjoined"),
        (CUDARuntimeError(701, "cudaErrorLaunchOutOfResources: too many"), ExecutionError, "OutOfResources"),
        (CompileException(LOG), ExecutionError, 'kern.cu(3): error: identifier "undefined"'),
        (CompileException("a.cu(1): catastrophic error: cannot open source file \"cuda_fp16.h\""), DeviceError, "pip"),
        (RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: no such file"), DeviceError, "pip install"),
        (ImportError("libcublas.so.13: cannot open shared object file"), DeviceError, "pip install"),
        (RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nat some line"), ExecutionError, "CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)  # fmt: skip
def test_every_exception_becomes_the_matching_error(error: Exception, kind: type[IoschedError], words: str) -> None:
    found = translated(error)
    assert type(found) is kind
    assert words in str(found)
    assert "at some line" not in str(found)


@pytest.mark.parametrize(
    ("status", "driver", "words"),
    [
        (35, 0, "no NVIDIA driver"),
        (
            35,
            12040,
            "the driver supports CUDA 12.4, but CuPy needs CUDA 13.0: update the NVIDIA driver to 580 or newer",
        ),
        (100, 13000, "CUDA_VISIBLE_DEVICES"),
        (802, 13000, "system not yet initialized"),
    ],
)
def test_the_reason_for_no_gpu_is_named(status: int, driver: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.none(monkeypatch)
    assert words in str(no_gpu_error(CUDARuntimeError(status, "system not yet initialized"), driver, 13000))


@needs_compiler
@pytest.mark.parametrize(
    ("gpu", "driver", "runtime", "way"),
    [
        (
            "NVIDIA L4:89",
            12040,
            13000,
            f"driver to 580 or newer, or {_CUDA12}",
        ),
        (
            "Tesla V100:70",
            12040,
            13000,
            f"CuPy needs CUDA 13.0: {_CUDA12}",
        ),
        ("Tesla V100:70", 11040, 13000, "CuPy needs CUDA 13.0: update the NVIDIA driver to 525 or newer, up to 580"),
        ("NVIDIA L4:89", 11040, 12090, "CuPy needs CUDA 12.9: update the NVIDIA driver to 525 or newer"),
        ("NVIDIA L4:89", 13000, 14000, "CuPy needs CUDA 14.0: update the NVIDIA driver"),
    ],
)
def test_a_driver_too_old_for_cupy_is_an_error_with_the_fix(
    gpu: str, driver: int, runtime: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin_driver.install(monkeypatch, gpu, cuda=driver)
    text = str(no_gpu_error(CUDARuntimeError(35, "insufficient driver"), driver, runtime))
    assert text.endswith(way)


@needs_compiler
def test_a_missing_library_error_names_the_extra_for_the_attached_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("libnvrtc.so.12: cannot be loaded")
    standin_driver.none(monkeypatch)
    assert str(translated(error)).endswith("(no NVIDIA driver found), run in a clone of iosched: pip install '.[cuda]'")
    standin_driver.install(monkeypatch, "Tesla V100-SXM2-16GB:70")
    assert str(translated(error)).endswith("pip install '.[cuda12]'")
