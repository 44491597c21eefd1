"""One attached GPU: its name, the versions of its libraries, and backends that run models on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.devices.cuda.clock import ReadClock, nvml_clock, nvml_memory_nbytes
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans, StoredCudnnPlans
from iosched.profiler.devices.open_settings import precision_on
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.fastest import CudnnPlanStore, FastestCudnnPlans
from iosched.runtime.cuda.cudnn.running import Handles
from iosched.runtime.cuda.cudnn.target import load_cudnn
from iosched.runtime.cuda.gpu.cupy import CupyDriver, GpuFacts
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.exchange import CupyExchange
from iosched.runtime.cuda.gpu.extras import EXTRAS, extra_for, extra_with
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.plan import CUDA_LOWERING, MAX_LANES
from iosched.runtime.cuda.onnxruntime.provider import Provider, ProviderSessions
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.unit_graph import Unit


@dataclass(frozen=True, eq=False)
class AttachedGpu:
    """One GPU of this machine.

    Attributes:
        index: the number of the GPU in CUDA.
        name: the name that its driver gives, for example "NVIDIA H100 80GB HBM3".
        versions: the versions of the driver and of the libraries that influence latencies, by their names.
        clock: reads how fast the GPU may run at the moment.
        memory_nbytes: all of its memory; None where that is not known.
    """

    index: int
    name: str
    versions: Mapping[str, str]
    driver: Driver
    clock: ReadClock = lambda: None
    memory_nbytes: int | None = None

    def backend(
        self,
        model: Model,
        precision: str,
        plans: CudnnPlanStore | None = None,
        layout: Layout | None = None,
        units: Sequence[Unit] = (),
    ) -> CudaBackend:
        """Makes a backend that runs `model` on this GPU.

        Args:
            plans: the cuDNN plans that are known, which also keeps those that are chosen; by default plans are chosen
                by timing, and are forgotten with the backend.
            layout: how images lie in memory; by default as is best for the precision and the GPU.
            units: operators to schedule as one, see `join_units`.

        Raises:
            UsageError: the GPU has no such precision, or `units` cannot be.
            DeviceError: the model has tensors whose sizes are known only when it runs, or cuDNN is missing.
        """
        computed = self.precision(precision)
        if not CudaBackend.supports(model):
            raise DeviceError(
                f"{model.name!r} has tensors of unknown or zero size, which the GPU runtime does not support"
            )
        known = plans or StoredCudnnPlans(ProfileDatabase(None), self.key(precision))
        choose = FastestCudnnPlans(self.driver, known, self._lanes, self._handles)
        sessions = ProviderSessions(self.driver, Provider.cuda(self.index, computed))
        exchange = CupyExchange(self.index)
        return CudaBackend(
            model, self.driver, choose, computed, self._lanes,
            layout=layout, sessions=sessions, exchange=exchange, choices=known, units=units,
        )  # fmt: skip

    def precision(self, name: str) -> Precision:
        """How the GPU computes under the precision of that name.

        Raises:
            UsageError: the GPU has no such precision.
        """
        return Precision(precision_on(self.name, name, has_tf32=self.driver.gpu.has_tf32))

    def cudnn_plans_of(self, document: ScheduleDocument | None) -> KnownCudnnPlans:
        """The cuDNN plans that a schedule names; none if the schedule was made on another GPU.

        Another version of cuDNN may lack some of these plans; the backend's `notes` then say so.
        """
        plans = None if document is None else document.runtime.get("cudnn_plans")
        if document is None or document.device.get("name") != self.name or not isinstance(plans, dict):
            return KnownCudnnPlans({})
        return KnownCudnnPlans({key: str(value) for key, value in plans.items()})

    @cached_property
    def _lanes(self) -> Lanes:
        """Streams that all backends share, so that they also share cuDNN's handles, which take memory of the GPU."""
        return Lanes(self.driver)

    @cached_property
    def _handles(self) -> Handles:
        return Handles()

    def key(self, precision: str) -> str:
        """The key of this GPU in the database: it names everything beside the stage that changes a latency.

        It does not name the layout of images: keys of stages, plans and choices say how their tensors lie.
        """
        versions = {**self.versions, "iosched": iosched_version(), "lowering": str(CUDA_LOWERING)}
        return device_key("cuda", self.name, precision=precision, threads=MAX_LANES, versions=versions)


def layout_of(document: ScheduleDocument | None) -> Layout | None:
    """How images lay in memory when a schedule was measured on a GPU; None for one that was not.

    Schedules from before there was a choice were measured in NHWC.
    """
    if document is None or document.device_kind != "cuda" or document.cost == "analytic":
        return None
    found = document.runtime.get("layout", Layout.NHWC)
    return next((each for each in Layout if each == found), None)


def attach(index: int = 0) -> AttachedGpu:
    """Opens the GPU with this number in CUDA.

    Raises:
        DeviceError: there is no such GPU, it is too old, or CuPy or cuDNN is missing; the text says what to do.
    """
    driver = CupyDriver(index)
    facts = driver.facts()
    check_capability(facts)
    versions = {**facts.versions, "cudnn": str(load_cudnn().backend_version())}
    where = facts.pci_bus_id
    return AttachedGpu(index, facts.name, versions, driver, nvml_clock(where), nvml_memory_nbytes(where))


def check_capability(facts: GpuFacts) -> None:
    """Accepts a GPU that the CUDA of CuPy has code for.

    Raises:
        DeviceError: the GPU is too old; the text says what to do.
    """
    capability, extra = facts.gpu.capability, extra_with(int(facts.versions["cuda"])) or EXTRAS[0]
    if capability < extra.least_capability:
        other = extra_for(int(facts.versions["driver"]), [capability])
        raise DeviceError(
            f"{facts.name} has compute capability {capability / 10}, but CUDA {extra.cuda} needs"
            f" {extra.least_capability / 10} or newer; its name as --device simulates it"
            + ("" if other is None else f"; to run on it, {other.way}")
        )
