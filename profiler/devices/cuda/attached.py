"""The GPU that is attached: its name, versions, and what stands ready to run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.devices.cuda.clock import ReadClock, nvml_clock
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans, StoredCudnnPlans
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.fastest import CudnnPlanStore, FastestCudnnPlans
from iosched.runtime.cuda.cudnn.running import Handles
from iosched.runtime.cuda.cudnn.target import load_cudnn
from iosched.runtime.cuda.gpu.cupy import CupyDriver, GpuFacts
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.exchange import CupyExchange
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower.plan import CUDA_LOWERING, MAX_LANES
from iosched.runtime.cuda.onnxruntime.provider import Provider, ProviderSessions
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import precision_named

OLDEST_CAPABILITY = 75
"""Compute capability times ten: CUDA 13 compiles for nothing older."""


@dataclass(frozen=True, eq=False)
class AttachedGpu:
    """One GPU of this machine.

    Attributes:
        name: as the driver calls it ("NVIDIA H100 80GB HBM3").
        versions: of the driver and of the libraries that change latencies.
        clock: looks at how fast it may run now.
    """

    index: int
    name: str
    versions: Mapping[str, str]
    driver: Driver
    clock: ReadClock = lambda: None

    def backend(self, model: Model, precision: str, memory: CudnnPlanStore | None = None) -> CudaBackend:
        """The backend of `model` on this GPU.

        Args:
            memory: cuDNN plans to use, and where those chosen are kept; by default they are found by timing, and
                forgotten with the backend.

        Raises:
            UsageError: no such precision.
            DeviceError: the model has tensors whose sizes only a run tells, or cuDNN is missing.
        """
        if not CudaBackend.supports(model):
            raise DeviceError(f"{model.name!r} has tensors of unknown or no size, which the GPU runtime cannot place")
        kept = memory or StoredCudnnPlans(ProfileDatabase(None), self.key(precision))
        choose = FastestCudnnPlans(self.driver, kept, self._lanes, self._handles)
        stored = Precision(precision_named(precision))
        sessions = ProviderSessions(self.driver, Provider.cuda(self.index, stored))
        exchange = CupyExchange(self.index)
        return CudaBackend(
            model, self.driver, choose, stored, self._lanes, sessions=sessions, exchange=exchange, choices=kept
        )

    def cudnn_plans_of(self, document: ScheduleDocument | None) -> KnownCudnnPlans:
        """The cuDNN plans that a schedule names; none where it was made on another GPU.

        Another cuDNN may have them too; what it lacks is told by the backend's `notes`.
        """
        plans = None if document is None else document.runtime.get("cudnn_plans")
        if document is None or document.device.get("name") != self.name or not isinstance(plans, dict):
            return KnownCudnnPlans({})
        return KnownCudnnPlans({key: str(value) for key, value in plans.items()})

    @cached_property
    def _lanes(self) -> Lanes:
        """All backends share streams, and so cuDNN's handles, which hold memory of the GPU."""
        return Lanes(self.driver)

    @cached_property
    def _handles(self) -> Handles:
        return Handles()

    def key(self, precision: str) -> str:
        """The device in a profile database: everything beside a stage that changes its latency."""
        versions = {**self.versions, "iosched": iosched_version(), "lowering": str(CUDA_LOWERING)}
        return device_key("cuda", self.name, precision=precision, threads=MAX_LANES, versions=versions)


def attach(index: int = 0) -> AttachedGpu:
    """Opens GPU `index`.

    Raises:
        DeviceError: there is none, it is too old, or CuPy or cuDNN is missing; says what to do.
    """
    driver = CupyDriver(index)
    facts = driver.facts()
    check_capability(facts)
    versions = {**facts.versions, "cudnn": str(load_cudnn().backend_version())}
    return AttachedGpu(index, facts.name, versions, driver, nvml_clock(facts.pci_bus_id))


def check_capability(facts: GpuFacts) -> None:
    """Accepts a GPU that kernels can be compiled for.

    Raises:
        DeviceError: it is too old.
    """
    if facts.capability < OLDEST_CAPABILITY:
        raise DeviceError(
            f"{facts.name} has compute capability {facts.capability / 10}, and CUDA 13 needs"
            f" {OLDEST_CAPABILITY / 10} or newer; its name, as --device, plans for it without running"
        )
