"""Puts models into clusters, the models of each into one graph, and operators that are worth it into one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from iosched.models.batching.keys import likeness_of
from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import Composition, compose
from iosched.models.composition.footprint import footprint_of, together_nbytes
from iosched.models.composition.members import Member, owners
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.scheduler.batching.clusters import arrival_clusters, similar_clusters
from iosched.scheduler.batching.costs import BatchingCosts
from iosched.scheduler.batching.ensemble import Ensemble
from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.batching.policies import POLICIES
from iosched.scheduler.batching.similarity import similarities


def clusters_of(
    models: Mapping[str, Model], policy: str = "dpbat", memory_nbytes: int | None = None
) -> tuple[tuple[str, ...], ...]:
    """Which models are put into one graph: similar ones, or with the policy "fcfs" those that came one after another.

    Args:
        models: by name, in the order in which they came.
        policy: see `POLICIES`.
        memory_nbytes: what the models of a cluster may take together; None for any amount.

    Raises:
        UsageError: a model takes more than that alone, or there is no policy of that name.
    """
    names = tuple(models)
    _check_policy(policy)
    footprints = [footprint_of(model) for model in models.values()]
    limit = float("inf") if memory_nbytes is None else memory_nbytes
    for name, footprint in zip(names, footprints, strict=True):
        if footprint.nbytes > limit:
            raise UsageError(
                f"model {name!r} takes {footprint.nbytes / 1e6:.1f} MB alone, and {limit / 1e6:.1f} MB are allowed.\n"
                "Allow more with --memory, or leave the model out."
            )

    def fits(places: Collection[int]) -> bool:
        return together_nbytes(footprints[place] for place in places) <= limit

    if policy == "fcfs":
        found = arrival_clusters(len(names), fits)
    else:
        found = similar_clusters(similarities([_keys(model) for model in models.values()]), fits)
    return tuple(tuple(names[place] for place in cluster) for cluster in found)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Models in one graph, and what batching knows of them.

    Attributes:
        composition: the models, without batching.
        ensemble: the same, as plans see them.
    """

    composition: Composition
    ensemble: Ensemble

    @property
    def model(self) -> Model:
        """The composed model."""
        return self.composition.model

    @property
    def members(self) -> tuple[Member, ...]:
        """The models in it, in the order in which they were given."""
        return self.composition.members

    def plan(self, policy: str, costs: BatchingCosts) -> Plan:
        """The plan of a policy at these prices.

        Raises:
            UsageError: there is no policy of that name.
        """
        _check_policy(policy)
        return POLICIES[policy](self.ensemble, costs)

    def batched(self, plan: Plan) -> Model:
        """The model in which the groups of a plan are one operator each; the composed model where it has none."""
        return batched(self.model, plan.all_groups()) if plan.groups else self.model


def composed(models: Mapping[str, Model], shared_inputs: Collection[str] = (), name: str = "batch") -> Cluster:
    """The models of one cluster in one graph.

    Args:
        models: by name.
        shared_inputs: names of inputs that all models of the cluster that have them share.
        name: of the model that is made.

    Raises:
        UsageError: names or shared inputs are not possible.
        InvalidModelError: the models' opsets cannot be brought together.
    """
    own = {spec.name for model in models.values() for spec in model.graph.inputs}
    composition = compose(models, [shared for shared in shared_inputs if shared in own], name)
    whole = composition.model
    ensemble = Ensemble.of(whole.graph, whole.structure, owners(whole, composition.members), likeness_of(whole))
    return Cluster(composition, ensemble)


def _keys(model: Model) -> list[str]:
    """The keys of a model's operators, in the order of its structure."""
    likeness = likeness_of(model)
    return [likeness[operator.name].key for operator in model.structure.operators]


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise UsageError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
