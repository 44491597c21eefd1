"""Schedules without stages: each lane runs operators in its order, and waits for results of other lanes.

List scheduling is that of H. Topcuoglu, S. Hariri and M.-Y. Wu, "Performance-Effective and Low-Complexity Task
Scheduling for Heterogeneous Computing", IEEE TPDS 13(3), 2002 (HEFT), on lanes of equal speed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.models.graph import ComputationGraph
from iosched.scheduler.blocks import partition
from iosched.scheduler.cost import CostModel, OperatorBounds
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

HANDOVER_US = 1.0
"""Microseconds until another lane has a result."""

_STREAMS = 8  # of a GPU
_FEW = 8  # lanes up to which every number is tried
_LESS = 1 - 1e-9  # sums of the same latencies in another order differ in the last bits


@dataclass(frozen=True)
class LaneTimes:
    """Latencies from which a schedule for lanes is made, in microseconds.

    Attributes:
        lanes: how many there are.
        on_lane_us: of an operator on one of them.
        alone_us: of an operator on all of them.
        stage_us: of a stage of lanes; by default, the total time of list scheduling.
    """

    lanes: int
    on_lane_us: Callable[[str], float]
    alone_us: Callable[[str], float]
    stage_us: Callable[[Stage], float] | None = None


def lane_times(cost: CostModel) -> LaneTimes:
    """The latencies of a device. If latencies are computed, those of stages of lanes are computed as well."""

    def alone_us(name: str) -> float:
        return cost.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),)))

    if not isinstance(cost, OperatorBounds):
        return LaneTimes(_STREAMS, alone_us, alone_us, cost.stage_latency_us)
    if cost.lanes > 1:
        return LaneTimes(cost.lanes, cost.operator_work_us, cost.operator_latency_us)
    return LaneTimes(_STREAMS, alone_us, alone_us)


def in_lanes(graph: ComputationGraph, times: LaneTimes) -> Schedule:
    """The graph on lanes as a whole or block by block, whichever takes less.

    A block that takes no less on lanes is run one operator after another.
    """
    parts = [part.operators for part in partition(graph)]
    by_block = Schedule(tuple(Block(index, _stages(graph, names, times)) for index, names in enumerate(parts)))
    whole = _stages(graph, tuple(operator.name for operator in graph.operators), times)
    as_one = Schedule((Block(0, whole),) if whole else ())
    return min(by_block, as_one, key=lambda found: found.predicted_us or 0.0)


def _stages(graph: ComputationGraph, names: Sequence[str], times: LaneTimes) -> tuple[Stage, ...]:
    in_turn = tuple(Stage(Strategy.CONCURRENT, ((name,),), times.alone_us(name)) for name in names)
    on_lane_us = {name: times.on_lane_us(name) for name in names}
    best, least_us = in_turn, sum(map(times.alone_us, names)) * _LESS
    for count in sorted({*range(2, min(times.lanes, _FEW) + 1), times.lanes}):
        groups, stage_us = listed(graph, on_lane_us, count)
        stage = Stage(Strategy.LANES, groups)
        if times.stage_us is not None:
            stage_us = times.stage_us(stage)
        if len(groups) > 1 and stage_us < least_us:
            best, least_us = (replace(stage, predicted_us=stage_us),), stage_us
    return best


@dataclass(frozen=True)
class _Span:
    begin_us: float
    end_us: float
    name: str


def listed(
    graph: ComputationGraph, latency_us: Mapping[str, float], lanes: int
) -> tuple[tuple[tuple[str, ...], ...], float]:
    """Some operators on at most `lanes` lanes by HEFT, and their total time in microseconds.

    Args:
        latency_us: by operator, in topological order; other operators count as done.

    Complexity: O(edges * lanes), and O(operators) for each skipped gap.
    """
    spans: list[list[_Span]] = [[] for _ in range(lanes)]
    ends: dict[str, tuple[int, float]] = {}
    for name in _by_rank(graph, latency_us):
        ready = [_ready_us(graph, name, lane, ends) for lane in range(lanes)]
        gaps = [_first_gap(own, begin_us, latency_us[name]) for own, begin_us in zip(spans, ready, strict=True)]
        lane = min(range(lanes), key=lambda lane: (gaps[lane][1], lane))
        place, begin_us = gaps[lane]
        spans[lane].insert(place, _Span(begin_us, begin_us + latency_us[name], name))
        ends[name] = lane, begin_us + latency_us[name]
    groups = tuple(tuple(span.name for span in own) for own in spans if own)
    return groups, max((end_us for _, end_us in ends.values()), default=0.0)


def _by_rank(graph: ComputationGraph, latency_us: Mapping[str, float]) -> list[str]:
    """The operators by the longest path from them to an end, longest first; predecessors come first."""
    rank_us: dict[str, float] = {}
    for name in reversed(list(latency_us)):
        after = (rank_us[other] + HANDOVER_US for other in graph.successors[name] if other in rank_us)
        rank_us[name] = latency_us[name] + max(after, default=0.0)
    return sorted(latency_us, key=lambda name: -rank_us[name])


def _ready_us(graph: ComputationGraph, name: str, lane: int, ends: Mapping[str, tuple[int, float]]) -> float:
    before = (ends[other] for other in graph.predecessors[name] if other in ends)
    return max((end_us + (HANDOVER_US if other != lane else 0.0) for other, end_us in before), default=0.0)


def _first_gap(spans: Sequence[_Span], ready_us: float, latency_us: float) -> tuple[int, float]:
    """The earliest gap in a lane for an operator: its position among the spans, and the start time."""
    first = bisect_right(spans, ready_us, key=lambda span: span.end_us)
    begin_us = ready_us
    for place in range(first, len(spans)):
        span = spans[place]
        if begin_us + latency_us <= span.begin_us and begin_us < span.begin_us:
            return place, begin_us
        begin_us = max(span.end_us, ready_us)
    return len(spans), begin_us
