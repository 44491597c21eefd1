"""Which attached GPUs can be used, and what is in the way of the others."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from iosched.models.errors import DeviceError, IoschedError
from iosched.profiler.devices.cuda.attached import check_capability
from iosched.runtime.cuda.cudnn.target import load_cudnn
from iosched.runtime.cuda.gpu.cupy import CupyDriver

_CUDA_PROVIDER = "CUDAExecutionProvider"


@dataclass(frozen=True)
class GpuProbe:
    """What a look at this machine's GPUs found.

    Attributes:
        names: of the GPUs by CUDA index; "" for one that cannot be used.
        problems: why some or all cannot be used, each with the way out.
        remarks: what works without, but not as well.
    """

    names: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether some GPU can be used."""
        return any(self.names)


def probe() -> GpuProbe:
    """Looks at the driver, CuPy, the GPUs and cuDNN, in this order: the first thing that fails hides the rest."""
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
    """Names of the GPUs by CUDA index, "" for one that cannot be used; none where CuPy or cuDNN is not installed."""
    if find_spec("cupy") is None or find_spec("cudnn") is None:
        return ()
    return probe().names


def _remarks() -> tuple[str, ...]:
    if find_spec("onnxruntime") is None:
        return ("onnxruntime is not installed: operators without a CUDA kernel cannot run",)
    import onnxruntime

    if _CUDA_PROVIDER in onnxruntime.get_available_providers():
        return ()
    return (
        "this onnxruntime has no CUDA provider: operators without a CUDA kernel run on the CPU (onnxruntime-gpu has"
        " one, and is installed instead of onnxruntime)",
    )
