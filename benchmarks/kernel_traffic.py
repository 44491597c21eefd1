"""What runs for a schedule on a GPU: kernels, multiply-adds, and what they read (DOS, table 5), from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from iosched.models.graph import ComputationGraph, Operator
from iosched.profiler.devices.analytic.kernels import Kernel, Product, kernels_of, leading_types, merged_kernels
from iosched.scheduler.schedule import Schedule, Stage, Strategy


@dataclass(frozen=True)
class Traffic:
    """Of all kernels of a schedule.

    Attributes:
        kernels: launches.
        multiply_adds: also those on zeros that a merge pads kernels with; a pooling's operations count as halves.
        read_nbytes: activations that kernels read, once for each kernel that reads them; no weights.
    """

    kernels: int
    multiply_adds: int
    read_nbytes: int


def traffic(graph: ComputationGraph, schedule: Schedule) -> Traffic:
    """Counts for `schedule`; what runs for an operator is what the analytic model takes it to be."""
    stages = list(schedule.stages)
    kernels = [kernel for stage in stages for kernel in _kernels(graph, stage)]
    return Traffic(len(kernels), sum(map(_multiply_adds, kernels)), sum(_read_nbytes(graph, stage) for stage in stages))


def is_merged(stage: Stage) -> bool:
    """Whether one kernel stands for several operators."""
    return stage.strategy is Strategy.MERGE and len(stage.groups) > 1


def _operators(graph: ComputationGraph, stage: Stage) -> Sequence[Operator]:
    return [graph.by_name[name] for name in stage.operators]


def _kernels(graph: ComputationGraph, stage: Stage) -> Sequence[Kernel]:
    operators = _operators(graph, stage)
    if is_merged(stage):
        return merged_kernels(graph, operators)
    return [kernel for operator in operators for kernel in kernels_of(graph, operator)]


def _multiply_adds(kernel: Kernel) -> int:
    if isinstance(kernel, Product):
        return kernel.rows * kernel.columns * kernel.inner * kernel.count
    return kernel.window_flops // 2


def _read_nbytes(graph: ComputationGraph, stage: Stage) -> int:
    operators = _operators(graph, stage)
    return sum(_reads(graph, operator) for operator in (operators[:1] if is_merged(stage) else operators))


def _reads(graph: ComputationGraph, operator: Operator) -> int:
    if not kernels_of(graph, operator):
        return 0
    inputs = [graph.tensor[name] for name in operator.inputs]
    if not leading_types(operator):
        return sum(spec.nbytes for spec in inputs)
    source, result = inputs[0], graph.tensor[operator.name]
    assert source.shape is not None
    assert result.shape is not None
    sums = sum(count * source.nbytes for count in operator.integers("terms") if count > 1)
    between = source.nbytes * prod(result.shape[2:]) // prod(source.shape[2:])
    return sums + 2 * source.nbytes + (between if operator.node_types.count("Conv") > 1 else 0)
