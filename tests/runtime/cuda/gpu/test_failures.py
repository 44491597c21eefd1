"""What CUDA, CuPy and cuDNN raise becomes an error for people: what went wrong, and the way out."""

from __future__ import annotations

import pytest

from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError
from iosched.runtime.cuda.gpu.failures import meaning, no_gpu


class CUDARuntimeError(RuntimeError):
    """As CuPy makes them."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OutOfMemoryError(MemoryError):
    """CuPy's, of its memory pool."""


class CompileException(Exception):  # noqa: N818 - CuPy's name
    """NVRTC's log."""


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
        (CUDARuntimeError(904, "cudaErrorStreamCaptureUnjoined: capture"), ExecutionError, "Unjoined"),
        (CUDARuntimeError(701, "cudaErrorLaunchOutOfResources: too many"), ExecutionError, "OutOfResources"),
        (CompileException(LOG), ExecutionError, 'kern.cu(3): error: identifier "undefined"'),
        (CompileException("a.cu(1): catastrophic error: cannot open source file \"cuda_fp16.h\""), DeviceError, "pip"),
        (RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: no such file"), DeviceError, "pip install"),
        (ImportError("libcublas.so.13: cannot open shared object file"), DeviceError, "pip install"),
        (RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nat some line"), ExecutionError, "CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)  # fmt: skip
def test_every_failure_has_its_meaning(error: Exception, kind: type[IoschedError], words: str) -> None:
    found = meaning(error)
    assert type(found) is kind
    assert words in str(found)
    assert "at some line" not in str(found)


@pytest.mark.parametrize(
    ("status", "driver", "words"),
    [
        (35, 0, "no NVIDIA driver"),
        (35, 12040, "the driver is for CUDA 12.4, and CuPy for CUDA 13.0: update NVIDIA's driver to 580 or newer"),
        (100, 13000, "CUDA_VISIBLE_DEVICES"),
        (802, 13000, "system not yet initialized"),
    ],
)
def test_why_there_is_no_gpu(status: int, driver: int, words: str) -> None:
    assert words in str(no_gpu(CUDARuntimeError(status, "system not yet initialized"), driver, 13000))
