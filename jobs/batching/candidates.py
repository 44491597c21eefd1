"""What may be shipped for a cluster: its models apart, and the batched models that plans make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from iosched.jobs.batching.costs import SampledCosts
from iosched.jobs.batching.plan import Cluster
from iosched.jobs.batching.rivals import (
    Rival,
    Site,
    batched_rivals,
    mixed_rivals,
    packed_rivals,
    serial_rivals,
)
from iosched.jobs.batching.schedules import predicted_us
from iosched.jobs.batching.settings import BatchSettings
from iosched.jobs.pace import PRICED, SEARCHED, Pace
from iosched.jobs.progress import Observer
from iosched.jobs.schedules import Deadline, schedule_by
from iosched.models.batching.ensemble import Group
from iosched.models.batching.sample import weightless
from iosched.models.composition.compose import compose
from iosched.models.errors import IoschedError
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel, ProfiledDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.batching.costs import interpolated
from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.schedule import Stage, Strategy

CUT_SHORT = "For lack of time not everything was searched: a larger --budget goes on with what was measured."


@dataclass(frozen=True, eq=False)
class Desk:
    """A device on which models are opened with the same settings.

    Attributes:
        device: the device.
        settings: how models are opened.
        database: the profile database; None if latencies are computed, and nothing is known of them.
    """

    device: ProfiledDevice
    settings: OpenSettings
    database: ProfileDatabase | None

    def open(self, model: Model, beside: OpenModel | None = None) -> OpenModel:
        """Opens `model`; see `ProfiledDevice.open`."""
        return self.device.open(model, self.settings, self.database, beside=beside)

    def best_us(self, beside: OpenModel, is_over: Deadline) -> Callable[[Model], float]:
        """A function from models to the latency of the best schedule that a search finds, in microseconds.

        It is infinite where the device cannot run the model by a schedule, and once it `is_over`.
        """

        def best_us(model: Model) -> float:
            if is_over():
                return math.inf
            try:
                with closing(self.open(model, beside)) as opened:
                    if not opened.is_schedulable:
                        return math.inf
                    found = schedule_by(opened, "both", deadline=is_over).schedule.predicted_us
            except IoschedError:
                return math.inf
            return math.inf if found is None else found

        return best_us


@dataclass(frozen=True, eq=False)
class Candidates:
    """Finds the rivals of one cluster, and keeps the models that they run open.

    Attributes:
        models: by name, each alone.
        cluster: the same in one graph.
        desk: where models are opened.
        settings: of the job.
        pace: how much time there is.
        observer: is told what comes next.
        kept: closes the models that are opened here.
        notes: keys are sentences that a user should read; they grow.
    """

    models: Mapping[str, Model]
    cluster: Cluster
    desk: Desk
    settings: BatchSettings
    pace: Pace
    observer: Observer
    kept: ExitStack
    notes: dict[str, None] = field(default_factory=dict)

    def site(self) -> Site:
        """The models apart, open on the device."""
        opened = self.kept.enter_context(closing(self.desk.open(self.cluster.model)))
        return Site(self.cluster.model, self.cluster.members, opened, shares=self.cluster.composition.shared > 0)

    def rivals(self, apart: Site) -> list[Rival]:
        """All ways to run the models, as far as the policy allows them.

        Args:
            apart: the models apart.
        """
        until, policy = self.pace.is_over(SEARCHED), self.settings.policy
        self._say("schedules of models in turn and side by side")
        without = self._without(apart)
        found = [] if policy == "packed" else list(serial_rivals(without, until))
        if policy != "serial":
            found += packed_rivals(without, until, with_ours=policy == "packed")
        if policy == "packed" and not found:  # one model has nobody beside it
            found += serial_rivals(without, until)
        if self.settings.batches:
            found += self._batching(apart, list(mixed_rivals(apart, until)))
        self._note_if_over(SEARCHED)
        return found

    def _without(self, apart: Site) -> Site:
        """The models as they run without this program, each with inputs of its own and sharing no operator.

        Where plain onnxruntime is a rival, its sessions are that. A schedule for a GPU needs a model of its own.
        """
        if not apart.shares or apart.plain_threads is not None or not apart.is_schedulable:
            return apart
        if not self.settings.batches or not self.settings.shared_inputs:  # in the first case nothing else could ship
            return replace(apart, shares=False)
        without = compose(self.models)
        opened = self.kept.enter_context(closing(self.desk.open(without.model, beside=apart.opened)))
        pairs = zip(without.members, self.cluster.members, strict=True)
        fed = {called: whole.inputs[name] for own, whole in pairs for name, called in own.inputs.items()}
        return Site(without.model, without.members, opened, fed=fed)

    def _batching(self, apart: Site, unbatched: list[Rival]) -> Iterator[Rival]:
        """Ways that run operators of several models as one, and layer by layer; `unbatched` does the latter alone."""
        yield from unbatched
        if apart.shares:
            yield from batched_rivals(apart)
        if len(apart.members) < 2 or not apart.is_schedulable:
            return
        for plan in self._plans(apart, unbatched):
            site = self._batched(apart, plan)
            yield from batched_rivals(site)
            yield from mixed_rivals(site, self.pace.is_over(SEARCHED))

    def _batched(self, apart: Site, plan: Plan) -> Site:
        self._say("scheduling the batched models")
        model = self.cluster.batched(plan)
        opened = self.kept.enter_context(closing(self.desk.open(model, beside=apart.opened)))
        return Site(model, self.cluster.members, opened, plan.all_groups())

    def _plans(self, apart: Site, unbatched: list[Rival]) -> Iterator[Plan]:
        """Plans that differ and batch something.

        Operators apart are priced one by one, though whole models beside each other wait less for each other. With
        "auto", plans are also made for the share of these prices that the best schedule without batching takes of them
        (`_share`), and for the middle.
        """
        self._say("prices of operators of several models as one")
        best_us = self.desk.best_us(apart.opened, self.pace.is_over(PRICED))
        sampled = self.cluster.model if apart.opened.here is not None else weightless(self.cluster.model)
        costs = SampledCosts(sampled, self.cluster.ensemble, best_us)
        plan = self._plan(costs)
        self._note_if_over(PRICED)
        if not plan.groups:
            return
        yield plan
        if self.settings.policy != "auto":
            return
        share = _share(apart.opened, costs, plan, min(predicted_us(each.found.schedule) for each in unbatched))
        known = {plan.all_groups()}
        for each in ((1 + share) / 2, share):
            less = self._plan(replace(costs, share=each))
            if less.groups and less.all_groups() not in known:
                known.add(less.all_groups())
                yield less

    def _plan(self, costs: SampledCosts) -> Plan:
        """A plan; only the prices for two and for all models are asked for."""
        return self.cluster.plan(self.settings.policy, interpolated(costs, len(self.cluster.members)))

    def _note_if_over(self, part: float) -> None:
        if self.pace.is_over(part)() and not self.pace.interrupt.accepted:
            self.notes[CUT_SHORT] = None

    def _say(self, text: str) -> None:
        self.pace.ask()
        names = ", ".join(member.name for member in self.cluster.members)
        self.observer.progress(0, None, f"{names}: {text}")


def _share(opened: OpenModel, costs: SampledCosts, plan: Plan, best_us: float) -> float:
    """What the best schedule without batching takes of what all operators take apart, sample by sample: at most 1.

    Args:
        opened: the models apart.
        costs: knows the samples of the groups of `plan`, at whose prices it was made.
        plan: of which the groups count as they run apart, side by side; all other operators one after another.
        best_us: the latency of the best schedule without batching.
    """
    grouped = {opened.units.unit_of(name) for name in plan.groups}
    others = (name for name in opened.graph.by_name if name not in grouped)
    total_us = sum(opened.cost.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),))) for name in others)
    total_us += sum(_apart_us(costs, plan, group) for group in plan.all_groups())
    return min(best_us / total_us, 1.0) if 0 < total_us < math.inf and best_us < math.inf else 1.0


def _apart_us(costs: SampledCosts, plan: Plan, group: Group) -> float:
    return costs.apart_us([plan.ensemble.graph.by_name[name] for name in group], len(group))
