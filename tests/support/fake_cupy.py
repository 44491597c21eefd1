"""A CuPy that only describes GPUs, and fails as the real one does."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import NoReturn

import pytest

from iosched.profiler.devices.cuda import attached


class CUDARuntimeError(RuntimeError):
    """Constructed like CuPy's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def install(
    monkeypatch: pytest.MonkeyPatch,
    *,
    status: int = 0,
    driver: int = 13000,
    version: int = 13000,
    capabilities: tuple[tuple[int, int], ...] = ((9, 0),),
    cudnn: int = 91002,
    cudnn_cuda: int | None = None,
) -> None:
    """Makes this module's CuPy the one that is imported, and a cuDNN that is there.

    Args:
        status: with which counting GPUs fails.
        driver: CUDA that the driver supports, as CUDA numbers it.
        version: of CUDA that it was built for.
        capabilities: of the GPUs, which are called "GPU 0" and so on.
        cudnn: its version.
        cudnn_cuda: the CUDA that it was built for; by default CuPy's.
    """

    def count() -> int:
        if status:
            raise CUDARuntimeError(status, f"cudaError{status}: why not")
        return len(capabilities)

    def properties(index: int) -> dict[str, object]:
        major, minor = capabilities[index]
        said = {"major": major, "minor": minor, "multiProcessorCount": 80, "l2CacheSize": 6 << 20}
        return {"name": f"GPU {index}".encode(), **said}

    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceCount=count,
        getDeviceProperties=properties,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: version,
        deviceGetPCIBusId=lambda index: f"0000:0{index}:00.0",
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        compiler=SimpleNamespace(CompileException=SyntaxError),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
        Device=lambda index: SimpleNamespace(use=lambda: None),
    )
    _put(monkeypatch, "cupy", SimpleNamespace(__version__="14.0", cuda=cuda))
    _put(monkeypatch, "cudnn", SimpleNamespace(backend_version=lambda: cudnn))
    monkeypatch.setattr(attached, "cudnn_cuda", lambda: cudnn_cuda or version)


def remove(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is neither CuPy nor cuDNN's frontend."""
    for name in ("cupy", "cudnn"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]


def without_library_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend is there, cuDNN itself is not."""

    def missing() -> NoReturn:
        raise RuntimeError("libcudnn.so.9: cannot open shared object file")

    _put(monkeypatch, "cudnn", SimpleNamespace(backend_version=missing))


def _put(monkeypatch: pytest.MonkeyPatch, name: str, module: SimpleNamespace) -> None:
    module.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
