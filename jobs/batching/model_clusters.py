"""Clusters of models, and their plans; also `batch --dry-run`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from iosched.models.batching.ensemble import Ensemble
from iosched.models.batching.operator_batch import ensemble_of, likeness_of
from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import Composition, MemoryUse, compose, footprint_of, together_nbytes
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, OpenSettings
from iosched.profiler.devices.profiled_device import ProfiledDevice
from iosched.profiler.devices.resolve import check_name, resolve
from iosched.runtime.device import Device
from iosched.scheduler.batching.clusters import arrival_clusters, similar_clusters, similarities
from iosched.scheduler.batching.costs import BatchingCosts, EqualGains
from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.batching.planner import planned
from iosched.scheduler.batching.policy_names import POLICY_NAMES, UNBATCHED, PolicyName
from iosched.scheduler.precision import DEFAULT_PRECISION


@dataclass(frozen=True)
class BatchSettings:
    """Settings of `batch`.

    Attributes:
        device: the device, as for `--device`.
        policy: how the operators to batch are chosen: "dpbat", "greedy" and "fcfs" plan once; "auto" plans like
            "dpbat", and again with less and less batching. "serial" and "packed" batch nothing, and run models one
            after another or side by side.
        memory_nbytes: the memory limit of a cluster; by default the device's memory.
        shared_inputs: names of inputs that are fed once, to all models that have them.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        precision: the precision of a GPU: "fp32", "tf32" or "fp16".
        launch: how a simulated GPU launches kernels: by one CUDA graph ("graph") or one by one ("streams").
        budget_s: the seconds for everything; None for no limit.
        profile_db: the profile database; by default the user's.
        resume: whether to use the latencies in the database.
        gap_percent: the gap that a search may leave, see `OptimizeSettings`.
        skip_broken: whether to leave out models that cannot run, instead of failing.
    """

    device: str = "auto"
    policy: PolicyName = "auto"
    memory_nbytes: int | None = None
    shared_inputs: tuple[str, ...] = ()
    threads: int | None = None
    precision: str = DEFAULT_PRECISION
    launch: str = DEFAULT_LAUNCH
    budget_s: float | None = None
    profile_db: Path | None = None
    resume: bool = True
    skip_broken: bool = False
    gap_percent: float | None = None

    @property
    def opening(self) -> OpenSettings:
        """Settings for opening models on the device."""
        return OpenSettings(
            self.threads, self.precision, launch=self.launch, resume=self.resume, gap_percent=self.gap_percent
        )

    @property
    def batches(self) -> bool:
        """Whether operators may be batched."""
        return self.policy not in UNBATCHED

    def limit_nbytes(self, device: Device) -> int | None:
        """The memory limit of a cluster on this device; None if unknown."""
        return device.info.memory_nbytes if self.memory_nbytes is None else self.memory_nbytes


def device_for(models: Mapping[str, Model], settings: BatchSettings) -> ProfiledDevice:
    """The device that the settings ask for."""
    check_name(settings.device)
    device = resolve(settings.device, next(iter(models.values())))
    device.check(settings.opening)
    return device


def planned_clusters(models: Mapping[str, Model], settings: BatchSettings) -> tuple[tuple[str, ...], ...]:
    """The names of the models in each cluster; measures nothing.

    Raises:
        UsageError: there is no model, no such policy, a setting is wrong, a model takes more memory than is allowed, or
            no model has an input that is to be shared.
        DeviceError: the device is not attached.
    """
    if not models:
        raise UsageError("no model to batch: name at least one")
    if settings.policy not in POLICY_NAMES:
        raise UsageError(f"unknown policy {settings.policy!r}: choose from {', '.join(POLICY_NAMES)}")
    own = {spec.name for model in models.values() for spec in model.graph.inputs}
    if unknown := [name for name in settings.shared_inputs if name not in own]:
        have = ", ".join(sorted(own))
        raise UsageError(f"cannot share input {unknown[0]!r}: no model has it; the inputs are {have}")
    return clusters_of(models, settings.policy, settings.limit_nbytes(device_for(models, settings)))


def clusters_of(
    models: Mapping[str, Model], policy: PolicyName = "auto", memory_nbytes: int | None = None
) -> tuple[tuple[str, ...], ...]:
    """Names of the models of each cluster: similar ones, or with the policy "fcfs" consecutive ones.

    Args:
        models: by name, in order of arrival.
        memory_nbytes: the memory limit of a cluster; None for no limit.
    """
    names = tuple(models)
    footprints = [footprint_of(model) for model in models.values()]
    limit = float("inf") if memory_nbytes is None else memory_nbytes
    for name, footprint in zip(names, footprints, strict=True):
        if (alone := together_nbytes([footprint])) > limit:
            raise UsageError(
                f"model {name!r} alone needs {alone / 1e6:.1f} MB, over the limit of {limit / 1e6:.1f} MB.\n"
                "Raise the limit with --memory, or remove the model."
            )

    def fits(places: Collection[int]) -> bool:
        return together_nbytes(footprints[place] for place in places) <= limit

    if policy == "fcfs":
        found = arrival_clusters(len(names), fits)
    else:
        keys = [[each.key for each in likeness_of(model).values()] for model in models.values()]
        found = similar_clusters(similarities(keys), fits)
    return tuple(tuple(names[place] for place in cluster) for cluster in found)


def divided(
    models: Mapping[str, Model], settings: BatchSettings, limit_nbytes: int, plan_nbytes: int
) -> tuple[tuple[str, ...], ...]:
    """The names of a cluster's models in at least two parts, since its plan exceeds the memory limit.

    Assumes that estimates are as far below the parts' plans as below the whole plan. A part that still exceeds the
    limit is divided again.

    Args:
        limit_nbytes: the limit.
        plan_nbytes: the size of the whole plan, above the limit.
    """
    footprints = [footprint_of(model) for model in models.values()]
    largest = max(together_nbytes([each]) for each in footprints)
    allowed = max(limit_nbytes * together_nbytes(footprints) // plan_nbytes, largest)
    parts = clusters_of(models, settings.policy, allowed)
    return parts if len(parts) > 1 else tuple((name,) for name in models)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Models in one graph, ready to be batched.

    Attributes:
        composition: the models, without batching.
        ensemble: the same, for plans.
    """

    composition: Composition
    ensemble: Ensemble

    @property
    def model(self) -> Model:
        """The composed model."""
        return self.composition.model

    def plan(self, policy: PolicyName, costs: BatchingCosts) -> Plan:
        """The plan of a policy at these prices."""
        return planned(self.ensemble, costs, policy)

    def batched(self, plan: Plan) -> Model:
        """The model with the groups of a plan batched; the composed model if it has none."""
        return batched(self.model, plan.all_groups()) if plan.groups else self.model


def composed(models: Mapping[str, Model], shared_inputs: Collection[str] = (), name: str = "batch") -> Cluster:
    """The models of one cluster in one graph.

    Args:
        models: by name.
        shared_inputs: names of inputs that all models of the cluster that have them share.
    """
    composition = compose(models, shared_inputs, name)
    return Cluster(composition, ensemble_of(composition))


@dataclass(frozen=True)
class ClusterEstimate:
    """The estimated size of a cluster.

    Attributes:
        operators: the total number of operators, with shared ones counted once.
        alike: the number of these that can be batched.
        shared: the number of nodes left out because another model computes the same.
        memory: bytes of weights and peak bytes of tensors.
    """

    names: tuple[str, ...]
    operators: int
    alike: int
    shared: int
    memory: MemoryUse


@dataclass(frozen=True)
class BatchEstimate:
    """The clusters of `batch` on a device, and the memory limit; None if unknown."""

    device_kind: str
    device_name: str
    cost: str
    policy: str
    memory_limit_nbytes: int | None
    clusters: tuple[ClusterEstimate, ...]


def estimate(models: Mapping[str, Model], settings: BatchSettings) -> BatchEstimate:
    """Puts models into clusters as `batch` does; measures and writes nothing.

    Raises:
        UsageError: a setting or a name is wrong, or a model takes more memory than is allowed.
        InvalidModelError: the models' opsets are incompatible.
        DeviceError: the device is not attached.
    """
    clusters = planned_clusters(models, settings)
    device = device_for(models, settings)
    limit = settings.limit_nbytes(device)
    found = tuple(_estimated({name: models[name] for name in names}, settings) for names in clusters)
    return BatchEstimate(device.info.kind, device.info.name, device.info.cost_kind, settings.policy, limit, found)


def _estimated(models: Mapping[str, Model], settings: BatchSettings) -> ClusterEstimate:
    cluster = composed(models, settings.shared_inputs)
    footprints = [footprint_of(model) for model in models.values()]
    return ClusterEstimate(
        names=tuple(models),
        operators=len(cluster.model.graph.operators),
        alike=len(cluster.plan("greedy", EqualGains()).groups) if settings.batches else 0,
        shared=cluster.composition.shared,
        memory=MemoryUse(sum(together_nbytes([each]) for each in footprints), together_nbytes(footprints)),
    )
