"""The job `batch --dry-run`: which models come together, and what they have in common; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iosched.jobs.batching.clusters import device_for, memory_limit_nbytes, planned_clusters
from iosched.jobs.batching.plan import composed
from iosched.jobs.batching.settings import BatchSettings
from iosched.models.composition.footprint import footprint_of, together_nbytes
from iosched.models.model import Model
from iosched.scheduler.batching.costs import EqualGains


@dataclass(frozen=True)
class ClusterEstimate:
    """Models that come together.

    Attributes:
        names: of the models.
        operators: how many they have together, with what is equal counted once.
        alike: how many of them could be one with those of other models.
        shared: nodes that are left out, since another model computes the same.
        alone_nbytes: memory of the models one by one: weights, and the most that tensors take at once.
        together_nbytes: memory of all in one file.
    """

    names: tuple[str, ...]
    operators: int
    alike: int
    shared: int
    alone_nbytes: int
    together_nbytes: int


@dataclass(frozen=True)
class Estimate:
    """What `batch` would put together on a device, and the limit of memory; None where it is not known."""

    device_kind: str
    device_name: str
    cost: str
    policy: str
    memory_limit_nbytes: int | None
    clusters: tuple[ClusterEstimate, ...]


def estimate(models: Mapping[str, Model], settings: BatchSettings) -> Estimate:
    """Puts models into clusters as `batch` does; measures and writes nothing.

    Raises:
        UsageError: a setting or a name is wrong, or a model takes more memory than is allowed.
        InvalidModelError: opsets cannot be brought together.
        DeviceError: the device is not attached.
    """
    clusters = planned_clusters(models, settings)
    device = device_for(models, settings)
    limit = memory_limit_nbytes(device, settings)
    found = tuple(_estimated({name: models[name] for name in names}, settings) for names in clusters)
    return Estimate(device.kind, device.name, device.cost_kind, settings.policy, limit, found)


def _estimated(models: Mapping[str, Model], settings: BatchSettings) -> ClusterEstimate:
    cluster = composed(models, settings.shared_inputs)
    footprints = [footprint_of(model) for model in models.values()]
    return ClusterEstimate(
        names=tuple(models),
        operators=len(cluster.model.graph.operators),
        alike=len(cluster.plan("greedy", EqualGains()).groups) if settings.batches else 0,
        shared=cluster.composition.shared,
        alone_nbytes=sum(each.nbytes for each in footprints),
        together_nbytes=together_nbytes(footprints),
    )
