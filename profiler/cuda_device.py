"""The GPU that is attached: its name, versions, and what stands ready to run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn_plans import PlanId
from iosched.runtime.cuda.cudnn_runner import PlanChoice
from iosched.runtime.cuda.driver import CupyDriver
from iosched.runtime.cuda.kernel import Precision

OLDEST_CAPABILITY = 75
"""Compute capability times ten: CUDA 13 compiles for nothing older."""


@dataclass(frozen=True, eq=False)
class AttachedGpu:
    """One GPU of this machine.

    Attributes:
        name: as the driver calls it ("NVIDIA H100 80GB HBM3").
        versions: of the driver and of the libraries that change latencies.
    """

    index: int
    name: str
    versions: Mapping[str, str]
    driver: CupyDriver
    choice: PlanChoice = field(repr=False)

    def backend(self, model: Model, precision: str) -> CudaBackend:
        """The backend of `model` on this GPU.

        Raises:
            DeviceError: the model has tensors whose sizes only a run tells.
        """
        if not CudaBackend.supports(model):
            raise DeviceError(f"{model.name!r} has tensors of unknown or no size, which the GPU runtime cannot place")
        return CudaBackend(model, self.driver, self.choice, Precision(precision))

    def chosen_plans(self) -> dict[str, str]:
        """cuDNN's plans chosen so far, for the schedule."""
        return {key: str(plan_id) for key, plan_id in sorted(self.choice.chosen.items())}


def attach(index: int = 0, known_plans: Mapping[str, str] | None = None) -> AttachedGpu:
    """Opens GPU `index`.

    Args:
        known_plans: cuDNN plans to use, as `AttachedGpu.chosen_plans` gives them.

    Raises:
        DeviceError: there is none, it is too old, or CuPy or cuDNN is missing; says what to do.
    """
    driver = CupyDriver(index)
    import cudnn
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    name = properties["name"].decode()
    capability = 10 * int(properties["major"]) + int(properties["minor"])
    if capability < OLDEST_CAPABILITY:
        raise DeviceError(
            f"{name} has compute capability {capability / 10}, and CUDA 13 needs {OLDEST_CAPABILITY / 10} or newer;"
            " its name, as --device, plans for it without running"
        )
    choice = PlanChoice(driver, {key: PlanId.parse(text) for key, text in (known_plans or {}).items()})
    versions = {
        "driver": str(cupy.cuda.runtime.driverGetVersion()),
        "cuda": str(cupy.cuda.runtime.runtimeGetVersion()),
        "cudnn": str(cudnn.backend_version()),
        "cupy": cupy.__version__,
    }
    return AttachedGpu(index, name, versions, driver, choice)
