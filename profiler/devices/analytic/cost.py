"""The analytic model as the search's cost model: no device is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iosched.models.graph import ComputationGraph, Operator
from iosched.profiler.devices.analytic.calibration import CALIBRATION, Calibration
from iosched.profiler.devices.analytic.kernels import Kernel, kernels_of, merged_kernels
from iosched.profiler.devices.analytic.work import ModelledGpu, Work
from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.throughput import Throughputs
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.signature import default_label
from iosched.scheduler.strategies import runs_as_one

_AS_ONE: dict[Strategy, Callable[[ComputationGraph, Sequence[Operator]], tuple[Kernel, ...]]] = {
    Strategy.MERGE: merged_kernels
}
"""For each strategy that makes several operators one, the kernels of that operator."""


class AnalyticCost:
    """Latencies of stages of `graph` on `gpu` by the analytic model: deterministic, and the same in every process.

    It is a `CostModel` with `OperatorKeys` and `AdditiveGroups`. Of a stage of several groups it says

        forks + max(busy of all groups, issue of all kernels, path of g + interference * (busy of the others + spill))

    for the group g that makes it longest. A group's path is the sum of its operators' latencies alone, busy is what it
    takes if it uses the whole GPU throughout, and spill is what the groups lose when they do not fit into the L2
    together. Bounds leave out the spill, so no stage undercuts its bound.

    Args:
        graph: the model, at the batch size of its bound shapes.
        gpu: a GPU of the table, see `gpus.gpu_named`.
        precision: "tf32" and "fp16" use tensor cores for matrix products where the GPU has them, and "fp16" stores
            float32 values in half as many bytes.
        calibration: constants of the model.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        gpu: GpuSpec,
        precision: PrecisionName = DEFAULT_PRECISION,
        *,
        calibration: Calibration = CALIBRATION,
    ) -> None:
        self.graph = graph
        self.gpu = gpu
        self.precision = precision
        wide = any(spec.dtype == "float32" for spec in (*graph.inputs, *graph.tensors))
        self._modelled = ModelledGpu(gpu, precision, calibration, halved=precision == "fp16" and wide)
        label = default_label(graph)
        self._labels = {operator.name: label(operator) for operator in graph.operators}
        self._work = _work(graph, self._modelled, self._labels)
        self._groups: dict[tuple[str, ...], Work] = {}

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage`; O(operators)."""
        groups = self._groups_of(stage)
        if len(groups) == 1:
            return groups[0].path_us
        return self._concurrent_us(groups, self._spilling(groups))

    def busy_us(self, stage: Stage) -> float:
        """For how long the work of `stage` would fill the whole GPU: at most its latency; O(operators)."""
        return sum(group.busy_us for group in self._groups_of(stage))

    def lower_bound_us(self, stage: Stage) -> float:
        """A launch where operators run as one; of other stages the longest of their groups, or all of their work."""
        if runs_as_one(stage):
            return self._modelled.calibration.kernel_us
        groups = [self._group(group) for group in stage.groups]
        return groups[0].path_us if len(groups) == 1 else self._concurrent_us(groups)

    @property
    def throughputs(self) -> Throughputs:
        """What stages compute and how fast, with the share of the SMs' time that is filled with work."""
        return Throughputs(self.graph, self.gpu.peak_tflops(self.precision), self.busy_us)

    def operator_key(self, name: str) -> str:
        """Type, attributes, shapes and types; no names."""
        return self._labels[name]

    @property
    def groups_are_additive(self) -> bool:
        """True: the kernels of a group run in order, and each takes what it takes alone."""
        return True

    def schedule_latency_us(self, schedule: Schedule) -> float:
        """Sum over the stages: they run one after another."""
        return sum(self.stage_latency_us(stage) for stage in schedule.stages)

    def _groups_of(self, stage: Stage) -> list[Work]:
        """What runs side by side; operators that run as one are one."""
        if runs_as_one(stage):
            operators = [self.graph.by_name[name] for name in stage.operators]
            return [self._modelled.work(_AS_ONE[stage.strategy](self.graph, operators))]
        return [self._group(group) for group in stage.groups]

    def _group(self, names: tuple[str, ...]) -> Work:
        """Operators of a group run in order; groups recur in many stages."""
        known = self._groups.get(names)
        if known is None:
            known = Work()
            for name in names:
                known = known.then(self._work[name])
            self._groups[names] = known
        return known

    def _concurrent_us(self, groups: Sequence[Work], spilling: float = 0.0) -> float:
        calibration = self._modelled.calibration
        busy = sum(group.busy_us for group in groups)
        spill = spilling * sum(group.spill_us for group in groups)
        hindered = max(group.path_us + calibration.interference * (busy - group.busy_us + spill) for group in groups)
        issued = calibration.issue_us * sum(group.n_kernels for group in groups)
        return calibration.fork_us * len(groups) + max(busy, hindered, issued)

    def _spilling(self, groups: Sequence[Work]) -> float:
        """The part of what the groups use together that does not fit into the L2."""
        footprint = sum(group.footprint_nbytes for group in groups)
        return max(1 - self.gpu.l2_nbytes / footprint, 0.0) if footprint else 0.0


def _work(graph: ComputationGraph, gpu: ModelledGpu, labels: dict[str, str]) -> dict[str, Work]:
    """Each operator's work, computed once for all that are alike."""
    known: dict[str, Work] = {}
    for operator in graph.operators:
        label = labels[operator.name]
        if label not in known:
            known[label] = gpu.work(kernels_of(graph, operator))
    return {name: known[label] for name, label in labels.items()}
