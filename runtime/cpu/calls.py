"""Calls: nodes, or one core's shares of them, on lanes, in an order that respects dependencies."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

from iosched.runtime.cpu.kernel_graph import KernelGraph, node_work_us
from iosched.runtime.cpu.slicing import Share, TensorSlice
from iosched.runtime.cpu.split import split, split_sum
from iosched.runtime.placement import Placement
from iosched.runtime.plan import View
from iosched.runtime.waits import LaneStep, Span
from iosched.scheduler.schedule import Division

_SMALLEST_PART_US = 10.0  # ten times a hand-off between cores


@dataclass(frozen=True, eq=False)
class NodeCall:
    """A node of the kernel graph, or one core's share of it, on a lane.

    Attributes:
        stage: index of its stage in the schedule.
        share: the share of the node's work, or None for all of it.
        is_copy: whether it copies an operand of an elided Concat to its place.
        cores: cores over which the library itself divides the work; if several, the cores of all lanes.
    """

    node: int
    lane: int
    stage: int
    share: Share | None
    is_copy: bool
    reads: tuple[tuple[str, View], ...]
    writes: tuple[tuple[str, View], ...]
    cores: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether no other lane may run at the same time."""
        return self.cores > 1


def own_lanes(
    kernels: KernelGraph, groups: Sequence[Sequence[int]], division: Division | None, lanes: int
) -> tuple[tuple[int, ...], ...]:
    """The lanes of each group of a stage: by the division, or by estimated work if it is for another number of lanes.

    A session stage always has all lanes.
    """
    if any(kernels.nodes[index].name in kernels.inside for nodes in groups for index in nodes):
        return (tuple(range(lanes)),) * len(groups)
    if division is not None and division.lanes == lanes and len(division.groups) == len(groups):
        return division.groups
    work_us = [sum(node_work_us(kernels, index) for index in nodes) for nodes in groups]
    return assign_lanes(work_us, lanes, kernels.lanes_in_a_cache)


def stage_calls(
    kernels: KernelGraph,
    placement: Placement,
    groups: Sequence[Sequence[int]],
    lanes: Sequence[Sequence[int]],
    stage: int,
) -> list[NodeCall]:
    """Calls of one stage, in an order that respects every dependency; `groups` are nodes in topological order."""
    found: list[NodeCall] = []
    for nodes, own in zip(groups, lanes, strict=True):
        for index in nodes:
            found.extend(_node_calls(kernels, placement, index, own, stage))
    return found


def _node_calls(
    kernels: KernelGraph, placement: Placement, index: int, lanes: Sequence[int], stage: int
) -> Iterable[NodeCall]:
    if index in placement.elided:
        for name, target in placement.copies.get(index, ()):
            reads = ((name, placement.views[name]),)
            yield NodeCall(index, lanes[0], stage, None, True, reads, ((kernels.nodes[index].output[0], target),))
        return
    if kernels.nodes[index].name in kernels.inside:
        yield NodeCall(index, lanes[0], stage, None, False, *_views(kernels, placement, index, None), cores=len(lanes))
        return
    own = kernels.rows.lane_of.get(kernels.nodes[index].output[0])
    if own is not None:
        yield NodeCall(index, lanes[own % len(lanes)], stage, None, False, *_views(kernels, placement, index, None))
        return
    wanted = min(len(lanes), ceil(node_work_us(kernels, index) / _SMALLEST_PART_US))
    steps = split_sum(kernels, index, wanted) or (split(kernels, index, wanted) or (None,),)
    for shares in steps:
        for lane, share in zip(lanes, shares, strict=False):
            yield NodeCall(index, lane, stage, share, False, *_views(kernels, placement, index, share))


def _views(
    kernels: KernelGraph, placement: Placement, index: int, share: Share | None
) -> tuple[tuple[tuple[str, View], ...], tuple[tuple[str, View], ...]]:
    slices = share.slices if share else {}
    node = share.node if share else kernels.nodes[index]
    read = kernels.reads[index] if share is None else dict.fromkeys(n for n in node.input if n in kernels.tensors)
    written = dict.fromkeys(name for name in node.output if name)
    reads = tuple((name, _sliced(placement.views[name], slices.get(name))) for name in read)
    writes = tuple((name, _sliced(placement.views[name], slices.get(name))) for name in written)
    return reads, writes


def _sliced(view: View, part: TensorSlice | None) -> View:
    if part is None or view.shape is None:
        return view
    size = prod(view.shape)
    item = view.nbytes // size if size else 0
    return View(view.buffer, view.dtype, part.shape, view.offset + part.start * item, prod(part.shape) * item)


def overlap(one: View, other: View) -> bool:
    """Whether two views share bytes of a buffer; views of unknown size cover all of it."""
    if one.buffer != other.buffer:
        return False
    if one.shape is None or other.shape is None:
        return True
    return one.offset < other.offset + other.nbytes and other.offset < one.offset + one.nbytes


def steps_of(calls: Sequence[NodeCall]) -> list[LaneStep]:
    """Reads and writes of the calls, for waits; a view of unknown size covers its whole buffer."""
    return [
        LaneStep(call.lane, _spans(call.reads), _spans(call.writes), call.stage, is_alone=call.is_alone)
        for call in calls
    ]


def _spans(views: Iterable[tuple[str, View]]) -> tuple[Span, ...]:
    return tuple(_span(view) for _, view in views)


def _span(view: View) -> Span:
    stop = sys.maxsize if view.shape is None else view.offset + view.nbytes
    return Span(view.buffer, 0 if view.shape is None else view.offset, stop)


def assign_lanes(work_us: Sequence[float], lanes: int, in_a_cache: int = 0) -> tuple[tuple[int, ...], ...]:
    """Give each group its lanes.

    With at least as many groups as lanes, each group gets one lane, longest first to the least loaded (Graham's LPT: at
    most 4/3 - 1/(3 lanes) of the best makespan). With fewer, each spare lane goes to the group with most work per lane.

    Args:
        in_a_cache: see `in_caches`.
    """
    if len(work_us) >= lanes:
        return _longest_first(work_us, lanes)
    counts = [1] * len(work_us)
    for _ in range(lanes - len(work_us)):
        counts[max(range(len(counts)), key=lambda group: (work_us[group] / counts[group], -group))] += 1
    return in_caches(counts, lanes, in_a_cache)


def in_caches(counts: Sequence[int], lanes: int, in_a_cache: int) -> tuple[tuple[int, ...], ...]:
    """Give each group `counts` lanes, within one cache where possible; O(groups * lanes).

    Args:
        in_a_cache: number of consecutive lanes that share a cache; 0 or 1: groups get adjacent lanes.
    """
    size = in_a_cache if 1 < in_a_cache < lanes else lanes
    free = [list(range(first, min(first + size, lanes))) for first in range(0, lanes, size)]
    found: dict[int, tuple[int, ...]] = {}
    for group in sorted(range(len(counts)), key=lambda group: -counts[group] if len(free) > 1 else group):
        own: list[int] = []
        while len(own) < counts[group]:
            missing = counts[group] - len(own)
            cache = min((each for each in free if len(each) >= missing), key=len, default=max(free, key=len))
            own += cache[:missing]
            del cache[:missing]
        found[group] = tuple(sorted(own))
    return tuple(found[group] for group in range(len(counts)))


def _longest_first(work_us: Sequence[float], lanes: int) -> tuple[tuple[int, ...], ...]:
    load = [0.0] * lanes
    chosen = [0] * len(work_us)
    for group in sorted(range(len(work_us)), key=lambda g: (-work_us[g], g)):
        lane = min(range(lanes), key=lambda candidate: (load[candidate], candidate))
        chosen[group] = lane
        load[lane] += work_us[group]
    return tuple((lane,) for lane in chosen)
