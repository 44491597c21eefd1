"""The analytic model as the search's cost model: no device is asked."""

from __future__ import annotations

from collections.abc import Sequence

from iosched.models.graph import ComputationGraph
from iosched.profiler.analytic.calibration import CALIBRATION, Calibration
from iosched.profiler.analytic.device import Device, Precision, Work
from iosched.profiler.analytic.kernels import kernels_of, merged_kernels
from iosched.profiler.gpus import GpuSpec
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.signature import default_label


class AnalyticCost:
    """Latencies of stages of `graph` on `gpu` by the analytic model: deterministic, and the same in every process.

    It is a `CostModel` with `OperatorBounds` and `OperatorKeys`. Of a concurrent stage it says

        fork + max(busy of all groups, path of the longest + interference * (busy of the others + spill))

    where a group's path is the sum of its operators' latencies alone, busy is what it would take if it used the
    whole GPU throughout, and spill is what the groups lose when they no longer fit into the L2 together.
    Both bounds follow: nothing is less than any group's path, or than busy of all groups together.
    """

    lanes = 1  # `operator_work_us` is work of the whole GPU

    def __init__(
        self,
        graph: ComputationGraph,
        gpu: GpuSpec,
        precision: Precision = "fp32",
        *,
        calibration: Calibration = CALIBRATION,
    ) -> None:
        self.graph = graph
        self.gpu = gpu
        self.precision = precision
        self._device = Device(gpu, precision, calibration)
        label = default_label(graph)
        self._labels = {operator.name: label(operator) for operator in graph.operators}
        self._work = _work(graph, self._device, self._labels)

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage`; O(operators)."""
        if stage.strategy is Strategy.MERGE and len(stage.groups) > 1:
            operators = [self.graph.by_name[name] for name in stage.operators]
            return self._device.work(merged_kernels(self.graph, operators)).path_us
        groups = [self._group(group) for group in stage.groups]
        if len(groups) == 1:
            return groups[0].path_us
        return self._concurrent_us(groups)

    def lower_bound_us(self, stage: Stage) -> float:
        """Of a concurrent stage the longest of its groups, or all of its work; of a merged one a launch."""
        if stage.strategy is Strategy.MERGE and len(stage.groups) > 1:
            return self._device.calibration.kernel_us
        busy = sum(self._work[name].busy_us for name in stage.operators)
        return max(busy, *(self._group(group).path_us for group in stage.groups))

    def operator_latency_us(self, name: str) -> float:
        """Latency of one operator with the whole GPU to itself."""
        return self._work[name].path_us

    def operator_work_us(self, name: str) -> float:
        """What the operator takes of the whole GPU at best."""
        return self._work[name].busy_us

    def operator_key(self, name: str) -> str:
        """Type, attributes, shapes and types; no names."""
        return self._labels[name]

    def schedule_latency_us(self, schedule: Schedule) -> float:
        """Sum over the stages: they run one after another."""
        return sum(self.stage_latency_us(stage) for stage in schedule.stages)

    def _group(self, names: Sequence[str]) -> Work:
        if len(names) == 1:
            return self._work[names[0]]
        total = Work()
        for name in names:
            total = total.then(self._work[name])
        return total

    def _concurrent_us(self, groups: Sequence[Work]) -> float:
        calibration = self._device.calibration
        longest = max(groups, key=lambda group: group.path_us)
        busy = sum(group.busy_us for group in groups)
        footprint = sum(group.footprint_nbytes for group in groups)
        outside = max(1 - self.gpu.l2_nbytes / footprint, 0.0) if footprint else 0.0
        spill = outside * sum(group.spill_us for group in groups)
        hidden = longest.path_us + calibration.interference * (busy - longest.busy_us + spill)
        return calibration.fork_us * len(groups) + max(busy, hidden)


def _work(graph: ComputationGraph, device: Device, labels: dict[str, str]) -> dict[str, Work]:
    """Each operator's work, computed once for all that are alike."""
    known: dict[str, Work] = {}
    for operator in graph.operators:
        label = labels[operator.name]
        if label not in known:
            known[label] = device.work(kernels_of(graph, operator))
    return {name: known[label] for name, label in labels.items()}
