"""Latencies of all concurrent stages of a block at once, as `AnalyticCost` computes them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iosched.profiler.devices.analytic.work import ModelledGpu, Work
from iosched.scheduler.bounds import sums
from iosched.scheduler.lattice import Latencies, Lattice, Masks


class _Groups(NamedTuple):
    """The `Work` of many groups, a column for each of its fields."""

    path_us: Latencies
    busy_us: Latencies
    spill_us: Latencies
    footprint_nbytes: Latencies
    n_kernels: Latencies


def side_by_side_us(gpu: ModelledGpu, work: Sequence[Work], lattice: Lattice) -> Latencies:
    """Latency of each stage with its groups side by side, in microseconds, (M,).

    All sums are made in the order of `AnalyticCost`, so that they are equal to the last bit.

    Args:
        gpu: the GPU that the stages run on.
        work: of each operator of the block.
        lattice: the states and stages of the block.

    Complexity: O(M * groups), and O(operators) for each distinct group.
    """
    calibration, l2_nbytes = gpu.calibration, gpu.gpu.l2_nbytes
    rounds = [(where, _groups(work, masks)) for where, masks in lattice.groups]
    n_groups, busy, spill, footprint, kernels = np.zeros((5, len(lattice.stages)))
    for where, group in rounds:
        n_groups[where] += 1
        busy[where] += group.busy_us
        spill[where] += group.spill_us
        footprint[where] += group.footprint_nbytes
        kernels[where] += group.n_kernels
    spill *= np.maximum(1 - l2_nbytes / np.maximum(footprint, 1), 0)
    last = np.maximum(busy, calibration.issue_us * kernels)
    for where, group in rounds:
        ends = group.path_us + calibration.interference * (busy[where] - group.busy_us + spill[where])
        last[where] = np.maximum(last[where], ends)
    found: Latencies = np.where(n_groups > 1, calibration.fork_us * n_groups + last, rounds[0][1].path_us)
    return found


def _groups(work: Sequence[Work], masks: Masks) -> _Groups:
    """The work of each group; groups recur in many stages."""
    distinct, where = np.unique(masks, return_inverse=True)
    footprint = np.zeros(len(distinct))
    for index, each in enumerate(work):
        inside = (distinct >> np.uint64(index)) & np.uint64(1)
        footprint = np.maximum(footprint, each.footprint_nbytes * inside)
    found = _Groups(
        sums(distinct, [each.path_us for each in work]),
        sums(distinct, [each.busy_us for each in work]),
        sums(distinct, [each.spill_us for each in work]),
        footprint,
        sums(distinct, [each.n_kernels for each in work]),
    )
    return _Groups(*(column[where] for column in found))
