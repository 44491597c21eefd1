"""Stages of a model that were measured on a GPU which is not attached here, out of an imported profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from iosched.models.model import Model
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans
from iosched.profiler.devices.elsewhere import MeasuredElsewhere
from iosched.profiler.devices.gpus import GpuSpec, gpu_named, spec_of
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import preferred_layout
from iosched.runtime.cuda.lower.fusion import fused_by_choice
from iosched.runtime.cuda.lower.layout_choice import layout_by_choice
from iosched.runtime.cuda.lower.network import Network, is_supported
from iosched.runtime.cuda.lower.plan import CUDA_LOWERING, MAX_LANES
from iosched.runtime.cuda.target import Gpu
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Stage, Strategy


class _Fields(msgspec.Struct, frozen=True):
    """What the key of a device in the database says, see `device_key`."""

    kind: str
    name: str
    precision: str
    threads: int
    versions: dict[str, str]


@dataclass(frozen=True)
class _Known:
    """A GPU that the database has measurements of."""

    key: str
    fields: _Fields
    newest: datetime

    @property
    def text(self) -> str:
        """Its name, the versions that matter most, and the day of its last measurement."""
        versions = (
            f"{name} {self.fields.versions[name]}" for name in ("cuda", "cudnn") if name in self.fields.versions
        )
        return f"{', '.join((self.fields.name, *versions))}, until {self.newest:%Y-%m-%d}"


def measured_elsewhere(
    database: ProfileDatabase, model: Model, gpu: str, precision: PrecisionName
) -> MeasuredElsewhere | None:
    """The stages of `model` that the database has measurements of on a GPU of the table.

    Stages are told by the signatures that the runtime of such a GPU makes, for which the model is lowered without one,
    with the choices between kernels that the database has. Of several GPUs of that name, drivers and libraries the one
    measured last is taken that has an operator of this model. What was measured in another precision, or by an iosched
    that runs stages in another way, is no measurement of these.

    Args:
        gpu: the key of the GPU in the table.
    """
    spec = gpu_named(gpu)
    if spec is None or not is_supported(model):
        return None
    target, computed = Gpu(spec.capability, spec.sms), Precision(precision)
    known = sorted(_known(database, spec, precision), key=lambda each: each.newest, reverse=True)
    found = (_stages(database, model, computed, target, each) for each in known)
    return next((each for each in found if _has_operator(each, model)), None)


def _known(database: ProfileDatabase, spec: GpuSpec, precision: PrecisionName) -> Iterator[_Known]:
    for device in database.stats().devices:
        try:
            fields = msgspec.json.decode(device.device, type=_Fields)
        except msgspec.MsgspecError:
            continue  # the key of another kind of device, or of an earlier iosched
        how = fields.kind, fields.precision, fields.threads, fields.versions.get("lowering")
        if how == ("cuda", precision, MAX_LANES, str(CUDA_LOWERING)) and spec_of(fields.name) == spec:
            yield _Known(device.device, fields, device.newest)


def _stages(
    database: ProfileDatabase, model: Model, precision: Precision, gpu: Gpu, known: _Known
) -> MeasuredElsewhere:
    network = _lowered(model, precision, gpu, StoredCudnnPlans(database, known.key, times=False))
    return MeasuredElsewhere(known.text, database.stage_medians(known.key), network.signature, network.operator_key)


def _lowered(model: Model, precision: Precision, gpu: Gpu, choices: StoredCudnnPlans) -> Network:
    """The model as `CudaBackend` lowers it where these choices are known and no others may be made."""
    network = Network(model, precision, preferred_layout(precision.name, gpu), gpu=gpu)
    layout = layout_by_choice(network, choices, _untimed).layout
    found, _ = fused_by_choice(network if layout is network.layout else network.in_layout(layout), choices, _never)
    return found


def _has_operator(found: MeasuredElsewhere, model: Model) -> bool:
    alone = (Stage(Strategy.CONCURRENT, ((operator.name,),)) for operator in model.graph.operators)
    return any(found.known_us(stage) for stage in alone)


def _untimed(networks: Sequence[Network]) -> Sequence[Sequence[float]]:
    raise AssertionError(f"{len(networks)} networks were to be timed without a GPU")


def _never(network: Network, name: str) -> float:
    raise AssertionError(f"{name} of {network.model.name} was to be timed without a GPU")
