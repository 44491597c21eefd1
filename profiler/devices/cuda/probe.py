"""Finds out which attached GPUs can be used, and what prevents the use of the others."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from iosched.models.errors import DeviceError, IoschedError
from iosched.profiler.devices.cuda.attached import check_capability
from iosched.runtime.cuda.cudnn.graph import load_cudnn
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.session import load_onnxruntime

_CUDA_PROVIDER = "CUDAExecutionProvider"


@dataclass(frozen=True)
class GpuProbe:
    """Which GPUs of this machine can be used.

    Attributes:
        names: the names of the GPUs in the order of their numbers in CUDA; "" for one that cannot be used.
        problems: why GPUs cannot be used, each with what to do about it.
        remarks: what is missing without which GPUs can be used, but models run more slowly.
    """

    names: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether at least one GPU can be used."""
        return any(self.names)


def probe() -> GpuProbe:
    """Tries CuPy, the driver, each GPU and cuDNN; if one of them fails, those after it are not tried."""
    names: list[str] = []
    problems: list[str] = []
    try:
        driver = CupyDriver()
        for index in range(driver.count):
            facts = driver.facts(index)
            try:
                check_capability(facts)
                names.append(facts.name)
            except DeviceError as error:
                names.append("")
                problems.append(f"GPU {index}: {error}")
        load_cudnn()
    except IoschedError as error:
        return GpuProbe(("",) * len(names), (*problems, str(error)))
    return GpuProbe(tuple(names), tuple(problems), _remarks())


def usable_names() -> tuple[str, ...]:
    """Names of the GPUs in the order of their numbers, "" for one that cannot be used.

    There are none if CuPy or cuDNN's frontend is not installed.
    """
    if find_spec("cupy") is None or find_spec("cudnn") is None:
        return ()
    return probe().names


def _remarks() -> tuple[str, ...]:
    if find_spec("onnxruntime") is None:
        return ("onnxruntime is not installed: operators without a CUDA kernel cannot run",)
    if _CUDA_PROVIDER in load_onnxruntime().get_available_providers():
        return ()
    return (
        "this onnxruntime has no CUDA provider: operators without a CUDA kernel run on the CPU (onnxruntime-gpu has"
        " one, and is installed instead of onnxruntime)",
    )
