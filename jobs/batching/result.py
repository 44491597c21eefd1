"""The result of `batch`: for each cluster a model and its schedule, and how the ways to run it compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from iosched.jobs.batching.rivals import Rival
from iosched.jobs.row import Row
from iosched.jobs.schedule_file import document_from, search_record
from iosched.models.composition.compose import Memory
from iosched.models.model import Model
from iosched.profiler.devices.ways import Running
from iosched.profiler.measuring.statistics import Interval, Measurement
from iosched.runtime.device import Device
from iosched.scheduler.batching.policy_names import ROW_NAMES, RowName
from iosched.scheduler.document import Alternative, ScheduleDocument
from iosched.scheduler.pruning import DEFAULT_PRUNING
from iosched.scheduler.strategy_names import RecordedStrategy

_STRATEGIES: Mapping[RowName, RecordedStrategy] = {
    "serial": "both", "packed": "packed", "batched": "sequential", "mixed": "mixed",
}  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """The ways that were compared, and which one ships.

    Attributes:
        rivals: for each row its fastest way.
        rows: their latencies, in the order of `ROW_NAMES`.
        shipped: the row that ships.
        reason: a text that says why.
        ratio: compares it, or else the first other row, with the faster of serial and packed; None if there is one row,
            or too few runs.
        notes: sentences that a user should read about what was not compared.
    """

    rivals: Mapping[RowName, Rival]
    rows: tuple[Row, ...]
    shipped: RowName
    reason: str
    ratio: Interval | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemberResult:
    """One model: its name, its nodes, and what it takes alone by its own schedule, where that is known."""

    name: str
    n_nodes: int
    latency_us: float | None


@dataclass(frozen=True, eq=False)
class ClusterResult:
    """Several models in one file.

    Attributes:
        model: what is to be written.
        document: its schedule.
        members: the models in it, in the order in which they were given.
        rows: the ways that were compared, in the order of `ROW_NAMES`.
        shipped: which of them runs the file.
        reason: a text that says why.
        ratio: compares what ships, or else the first other way, with the faster of serial and packed; None where that
            is not known.
        batched: how many operators of the models are one with others in the file.
        shared: how many nodes the file has not, since another one computes the same.
        memory: bytes of weights, of the models alone and together.
        estimated_nbytes: memory of weights and tensors together, as clusters are made by.
        plan_nbytes: the same by the plan of what ships, see `Running`; None where that has no plan of ours, or the
            device is not at hand.
        notes: sentences that a user should read.
    """

    model: Model
    document: ScheduleDocument
    members: tuple[MemberResult, ...]
    rows: tuple[Row, ...]
    shipped: RowName
    reason: str
    ratio: Interval | None
    batched: int
    shared: int
    memory: Memory
    estimated_nbytes: int
    plan_nbytes: int | None = None
    notes: tuple[str, ...] = ()

    def latency_us(self, name: str) -> float | None:
        """The latency of a row; None where it was not compared."""
        return next((row.latency_us for row in self.rows if row.name == name), None)


@dataclass(frozen=True, eq=False)
class BatchResult:
    """What became of all models.

    Attributes:
        clusters: the files to write.
        device_kind: "cpu" or "cuda".
        device_name: the product's name of the device.
        cost: "measured" or "analytic".
        seconds: how long all took.
        left_out: the models that are in no file, since they cannot be run, and why.
        notes: sentences that a user should read.
    """

    clusters: tuple[ClusterResult, ...]
    device_kind: str
    device_name: str
    cost: str
    seconds: float
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def n_models(self) -> int:
        """How many models the files have."""
        return sum(len(cluster.members) for cluster in self.clusters)

    @property
    def memory(self) -> Memory:
        """Bytes of weights of all models, alone and in the files."""
        each = [cluster.memory for cluster in self.clusters]
        return Memory(sum(one.alone_nbytes for one in each), sum(one.together_nbytes for one in each))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The ways to run all models once, one cluster after another; a way that one of them has not is left out.

        With several clusters there are no intervals, for sums of medians have none.
        """
        if len(self.clusters) == 1:
            return self.clusters[0].rows
        return tuple(row for name in ROW_NAMES if (row := self._summed(name)) is not None)

    def _summed(self, name: RowName) -> Row | None:
        rows = [row for cluster in self.clusters for row in cluster.rows if row.name == name]
        if not rows or len(rows) < len(self.clusters):
            return None
        rested = [row.rested_us for row in rows if row.rested_us is not None]
        rested_us = (sum(rested),) if len(rested) == len(rows) else ()
        return Row(name, Measurement(sum(row.latency_us for row in rows), 0.0, inf, (), rested_us=rested_us))

    @property
    def shipped(self) -> RowName | None:
        """What ships; None where clusters differ."""
        found = {cluster.shipped for cluster in self.clusters}
        return found.pop() if len(found) == 1 else None


def document_of(device: Device, compared: Compared, running: Running) -> ScheduleDocument:
    """The schedule file of the rival that ships; others that run a schedule of the same model are its alternatives.

    Args:
        device: that it was found on.
        compared: the rivals.
        running: facts about running the one that ships.
    """
    rival = compared.rivals[compared.shipped]
    model, here = rival.site.model, rival.site.opened.here
    latency_us: dict[str, float | None] = {row.name: row.latency_us for row in compared.rows}
    return replace(
        document_from(model, device, here, rival.schedule),
        shipped=rival.row,
        search=search_record(_STRATEGIES[rival.row], DEFAULT_PRUNING, rival.found, here),
        latency_us={
            "predicted": rival.found.schedule.predicted_us,
            "measured": None if here is None else latency_us[rival.row],
            **latency_us,
        },
        runtime=dict(running.runtime),
        alternatives=tuple(
            Alternative(other.row, other.schedule, None if here is None else latency_us[other.row])
            for other in compared.rivals.values()
            if other.row != rival.row and other.site is rival.site and other.library is None
        ),
    )
