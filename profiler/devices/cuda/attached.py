"""One attached GPU: its name, library versions, and backends that run models on it."""

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
from iosched.runtime.cuda.cudnn.cudnn_graph import cudnn_cuda, load_cudnn
from iosched.runtime.cuda.cudnn.fastest import CudnnHandles, CudnnPlanStore, FastestCudnnPlans
from iosched.runtime.cuda.gpu.cupy import CupyDriver, GpuFacts
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.exchange import CupyExchange
from iosched.runtime.cuda.gpu.extras import EXTRAS, extra_for, extra_with
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.lowering import CUDA_LOWERING, MAX_LANES
from iosched.runtime.cuda.onnxruntime.provider import Provider, ProviderSessions
from iosched.runtime.cuda.onnxruntime.tensorrt import Engine
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.unit_graph import Unit


@dataclass(frozen=True, eq=False)
class AttachedGpu:
    """One GPU of this machine; `index` is its number in CUDA, `memory_nbytes` None if unknown."""

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
        """A backend that runs `model` on this GPU.

        Args:
            plans: known cuDNN plans, where chosen ones are stored; by default, plans are timed and not stored.
            layout: of images; by default the best for the precision and the GPU.

        Raises:
            UsageError: the GPU has no such precision, or `units` are invalid.
            DeviceError: the model has tensors of unknown size, or cuDNN is missing.
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
        """The arithmetic of this precision; raises a UsageError if the GPU does not support it."""
        return Precision(precision_on(self.name, name, has_tf32=self.driver.gpu.has_tf32))

    def cudnn_plans_of(self, document: ScheduleDocument | None) -> KnownCudnnPlans:
        """The cuDNN plans that a schedule names; none if it was made on another GPU.

        If another version of cuDNN does not have some of them, the backend's `notes` report it.
        """
        plans = None if document is None else document.runtime.get("cudnn_plans")
        if document is None or document.device.get("name") != self.name or not isinstance(plans, dict):
            return KnownCudnnPlans({})
        return KnownCudnnPlans({key: str(value) for key, value in plans.items()})

    def engine(self, model: Model, precision: str) -> Engine:
        """The identity of the engine that TensorRT builds for a model."""
        return Engine(self.index, precision, f"{self.key(precision)} {model.digest} {sorted(model.bindings.items())}")

    @cached_property
    def _lanes(self) -> Lanes:
        """Streams shared by all backends, so that these share cuDNN's handles, which take GPU memory."""
        return Lanes(self.driver)

    @cached_property
    def _handles(self) -> CudnnHandles:
        return CudnnHandles(self.driver)

    def key(self, precision: str) -> str:
        """The key of this GPU in the database, with everything but the stage that affects a latency.

        It excludes the layout of images, which keys of stages, plans and choices contain.
        """
        versions = {**self.versions, "iosched": iosched_version(), "lowering": str(CUDA_LOWERING)}
        return device_key("cuda", self.name, precision=precision, threads=MAX_LANES, versions=versions)


def layout_of(document: ScheduleDocument | None) -> Layout | None:
    """The layout of images of a schedule measured on a GPU, NHWC in old files; None for other schedules."""
    if document is None or document.device_kind != "cuda" or document.cost == "analytic":
        return None
    found = document.runtime.get("layout", Layout.NHWC)
    return next((each for each in Layout if each == found), None)


def attach(index: int = 0) -> AttachedGpu:
    """Opens the GPU with this number in CUDA.

    Raises:
        DeviceError: there is no such GPU, it is too old, or CuPy or cuDNN is missing.
    """
    driver = CupyDriver(index)
    facts = driver.facts()
    versions = {**facts.versions, "cudnn": check_gpu(facts)}
    where = facts.pci_bus_id
    return AttachedGpu(index, facts.name, versions, driver, nvml_clock(where), nvml_memory_nbytes(where))


_NEW_CUDNN, _NEW_CUDNN_CAPABILITY = 91100, 75
"""From this version on, most of cuDNN's libraries have no code for older GPUs, though it builds plans for them."""

_CUDNN_PACKAGES = {12: "'nvidia-cudnn-cu12>=9.10,<9.11'"}


def check_gpu(facts: GpuFacts) -> str:
    """Checks that CuPy and cuDNN support the GPU, and returns cuDNN's version number.

    Raises:
        DeviceError: the GPU is too old, or cuDNN is missing, too new for the GPU, or for another CUDA than CuPy.
    """
    _check_capability(facts)
    version, cuda = int(load_cudnn().backend_version()), int(facts.versions["cuda"]) // 1000
    built_for = (cudnn_cuda() or 1000 * cuda) // 1000
    install = f"pip install --force-reinstall --no-deps {_CUDNN_PACKAGES.get(cuda, f'nvidia-cudnn-cu{cuda}')}"
    if built_for != cuda:
        raise DeviceError(
            f"cuDNN {cudnn_text(version)} is for CUDA {built_for}, but CuPy is for CUDA {cuda}: another package"
            f" replaced it, perhaps PyTorch; run pip uninstall nvidia-cudnn-cu{built_for}, then {install}"
        )
    if facts.gpu.capability < _NEW_CUDNN_CAPABILITY and version >= _NEW_CUDNN:
        raise DeviceError(
            f"cuDNN {cudnn_text(version)} has no code for {facts.name} (compute capability"
            f" {facts.gpu.capability / 10}); run {install}"
        )
    return str(version)


def cudnn_text(version: int) -> str:
    """cuDNN 9 numbers 9.19.0 as 91900."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def _check_capability(facts: GpuFacts) -> None:
    capability, extra = facts.gpu.capability, extra_with(int(facts.versions["cuda"])) or EXTRAS[0]
    if capability < extra.least_capability:
        other = extra_for(int(facts.versions["driver"]), [capability])
        raise DeviceError(
            f"{facts.name} has compute capability {capability / 10}, but CUDA {extra.cuda} needs"
            f" {extra.least_capability / 10} or newer; its name as --device simulates it"
            + ("" if other is None else f"; to run on it, {other.way}")
        )
