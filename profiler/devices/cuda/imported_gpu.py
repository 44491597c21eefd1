"""Stages of a model that were measured on a GPU of another machine, from an imported profile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from iosched.models.model import Model
from iosched.models.prepared import prepare
from iosched.models.version import iosched_version
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans
from iosched.profiler.devices.gpus import GpuSpec, card_of, gpu_named, spec_of
from iosched.profiler.devices.imported_stages import NO_PROFILE, ImportedProfile, ImportedStages
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.kernel import Gpu, Precision
from iosched.runtime.cuda.layout import preferred_layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel, is_supported
from iosched.runtime.cuda.lower.lowering import CUDA_LOWERING, MAX_LANES
from iosched.runtime.cuda.lower.timed_choices import fused_by_choice, layout_by_choice
from iosched.scheduler.precision import PRECISIONS, PrecisionName
from iosched.scheduler.schedule import Stage, Strategy

_MOST_VERSIONS = 8
_MOST_SENTENCES = 3
_LONGEST_NAME = 60


class _Fields(msgspec.Struct, frozen=True):
    """The fields of a device's key in the database, see `device_key`."""

    kind: str
    name: str
    precision: str
    threads: int
    versions: dict[str, str]


prepare(_Fields)


@dataclass(frozen=True)
class _Known:
    key: str
    fields: _Fields
    newest: datetime

    @property
    def name(self) -> str:
        return self.fields.name[:_LONGEST_NAME]

    @property
    def text(self) -> str:
        versions = (
            f"{name} {self.fields.versions[name][:_LONGEST_NAME]}"
            for name in ("cuda", "cudnn") if name in self.fields.versions
        )  # fmt: skip
        return f"{self.name} ({', '.join((*versions, f'last on {self.newest:%Y-%m-%d}'))})"

    @property
    def is_compatible(self) -> bool:
        return self.fields.threads == MAX_LANES and self.fields.versions.get("lowering") == str(CUDA_LOWERING)


def imported_profile(database: ProfileDatabase, model: Model, gpu: str, precision: PrecisionName) -> ImportedProfile:
    """The stages of `model` that were measured on the GPU with this key, from the database.

    Stages are found by the signatures of such a GPU's runtime, for which the model is lowered with the choices of
    kernels in the database. Drivers and libraries are never mixed: the version with the most operators of this model is
    used, the latest of equal ones. Stages of another precision, card or lowering are skipped, see
    `ImportedProfile.passed_over`. Nothing is written. Complexity: a lowering of the model, and a pass over the stages
    in the database, for each of the eight latest versions.
    """
    spec = gpu_named(gpu)
    if spec is None or not is_supported(model):
        return NO_PROFILE
    target, computed = Gpu(spec.capability, spec.sms), Precision(precision)
    known = sorted(_known(database), key=lambda each: each.newest, reverse=True)
    fit = [each for each in known if each.is_compatible and each.fields.precision == precision]
    fit = [each for each in fit if card_of(each.fields.name) == spec][:_MOST_VERSIONS]
    found = [_stages(database, model, computed, target, each) for each in fit]
    best = max(found, key=lambda each: _operators_in(each, model), default=None)
    if best is not None and _operators_in(best, model):
        return ImportedProfile(best)
    sentences = (_passed_over(each, spec, precision) for each in known)
    return ImportedProfile(passed_over=tuple(dict.fromkeys(each for each in sentences if each))[:_MOST_SENTENCES])


def _known(database: ProfileDatabase) -> Iterator[_Known]:
    for device in database.stats().devices:
        try:
            fields = msgspec.json.decode(device.device, type=_Fields)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # the key of another kind of device, an earlier iosched, or another program
        if fields.kind == "cuda":
            yield _Known(device.device, fields, device.newest)


def _passed_over(known: _Known, wanted: GpuSpec, precision: PrecisionName) -> str | None:
    """Why the stages of that GPU are skipped; None if the user would not expect them to be used."""
    card, there = card_of(known.fields.name), f"The profile database has stages that were measured on {known.name}"
    if card is None:
        other = spec_of(known.fields.name) == wanted
        return f"{there}, which is another card than {wanted.name}: they are not used." if other else None
    if card != wanted:
        alike = (card.capability, card.sms) == (wanted.capability, wanted.sms)
        return f"{there}: use --device {card.key} for them." if alike else None
    if not known.is_compatible:
        return f"{there} by an incompatible iosched: measure them again with {iosched_version()}."
    if known.fields.precision != precision:
        spoken = known.fields.precision
        return f"{there} in {spoken}: use --precision {spoken} for them." if spoken in PRECISIONS else None
    return f"{there}, but none of this model's operators."


def _stages(database: ProfileDatabase, model: Model, precision: Precision, gpu: Gpu, known: _Known) -> ImportedStages:
    lowered = _lowered(model, precision, gpu, StoredCudnnPlans(database, known.key, times=False))
    latency_us = database.stage_medians(known.key)
    for signature in map(lowered.signature, _alone(model)):
        if latency_us.get(signature) == math.inf:  # invalid: runtimes raise if a single operator fails
            del latency_us[signature]
    return ImportedStages(known.text, latency_us, lowered.signature, lowered.operator_key)


def _lowered(model: Model, precision: Precision, gpu: Gpu, choices: StoredCudnnPlans) -> LoweredModel:
    """The model as `CudaBackend` lowers it with these choices and no timing."""
    lowered = LoweredModel(model, precision, preferred_layout(precision.name, gpu), gpu=gpu)
    layout = layout_by_choice(lowered, choices, _untimed).layout
    found, *_ = fused_by_choice(lowered if layout is lowered.layout else lowered.in_layout(layout), choices, _never)
    return found


def _operators_in(found: ImportedStages, model: Model) -> int:
    return sum(found.known_us(stage) is not None for stage in _alone(model))


def _alone(model: Model) -> Iterator[Stage]:
    return (Stage(Strategy.CONCURRENT, ((operator.name,),)) for operator in model.graph.operators)


def _untimed(models: Sequence[LoweredModel]) -> Sequence[Sequence[float]]:
    raise AssertionError(f"{len(models)} networks were to be timed without a GPU")


def _never(lowered: LoweredModel, names: Sequence[str]) -> float:
    raise AssertionError(f"{', '.join(names)} of {lowered.model.name} was to be timed without a GPU")
