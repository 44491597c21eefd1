"""The first operators of a network, shared out between rows of the image, where that is better than between channels.

Near the image tensors are large and have few channels: one or two blocks for each core, or blocks that cores cannot
share evenly, and MLAS computes up to four blocks for each pixel that it loads. Rows are not contiguous in the blocked
layout, so a core cannot be given some rows of a tensor; but as long as all operators are computed so, each core may
keep its rows in tensors of its own. Only where another operator reads the whole are they put together.

This is done where operators follow one another, so that there is nothing to schedule side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from iosched.models.node_attributes import integer
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.row_ranges import RowPlan, height, plan_rows, windows
from iosched.runtime.cpu.rows_draft import RowsDraft
from iosched.runtime.cpu.shares import even_ranges, shape_of
from iosched.runtime.cpu.work import node_work_us

_SET_COST = (0.0, 1.8, 2.3, 3.1, 4.0)  # of 0 to 4 blocks of results that MLAS computes at once, in blocks of a full set
_BYTES_PER_US = 8_000  # as `work.py` guesses
_HANDOVER_US = 5.0
_LEAST_GAIN_US = 50.0
_SLICE_BY_OPERANDS = 10  # the operator set since which a Slice has its numbers as operands


def share_rows(kernels: KernelGraph, lanes: int, least_gain_us: float = _LEAST_GAIN_US) -> KernelGraph:
    """The graph, with the run of nodes after its input that is best shared out between rows cut so for `lanes` cores.

    The graph inside `kernels` is edited.

    Complexity: O(n^2) in the nodes of the longest such run.
    """
    if lanes < 2 or kernels.opsets.get("", 0) < _SLICE_BY_OPERANDS:
        return kernels
    plan = _best(kernels, lanes, least_gain_us)
    return kernels if plan is None else RowsDraft(kernels, plan).finished()


def _best(kernels: KernelGraph, lanes: int, least_gain_us: float) -> RowPlan | None:
    found: tuple[float, RowPlan] | None = None
    for run in _runs(kernels):
        plan = _planned(kernels, run, lanes)
        gain_us = 0.0 if plan is None else _gain_us(kernels, plan, lanes)
        if plan is not None and gain_us >= least_gain_us and (found is None or gain_us > found[0]):
            found = gain_us, plan
    return found[1] if found else None


def _runs(kernels: KernelGraph) -> Iterator[tuple[int, ...]]:
    """Runs of nodes that compute one tensor from an input of the graph, and of which others read that tensor alone."""
    for source in kernels.inputs:
        nodes: list[int] = []
        inside = {source}
        while len(alive := _alive(kernels, nodes, inside)) <= 2:  # what a sum adds may wait beside the trunk
            if nodes and alive == [kernels.nodes[nodes[-1]].output[0]]:
                yield tuple(nodes)
            readers = [reader for name in alive for reader in kernels.readers[name] if reader not in nodes]
            if not readers or not _may_follow(kernels, min(readers), inside):
                break
            nodes.append(min(readers))
            inside.add(kernels.nodes[nodes[-1]].output[0])


def _alive(kernels: KernelGraph, nodes: Sequence[int], inside: set[str]) -> list[str]:
    """Tensors that others than these nodes read."""
    return [name for name in inside if not set(nodes).issuperset(kernels.readers[name])]


def _may_follow(kernels: KernelGraph, index: int, inside: set[str]) -> bool:
    """Whether a node may go on with a run: nothing else could run beside it."""
    if not inside.issuperset(kernels.reads[index]) or not inside.isdisjoint(kernels.outputs):
        return False
    image, result = kernels.reads[index][0], kernels.nodes[index].output[0]
    beside = [reader for reader in kernels.readers[image] if kernels.nodes[reader].input[0] == image]
    return len(beside) == 1 and result not in kernels.outputs and windows(kernels, index) is not None


# --- what it is worth ---------------------------------------------------------------------------------------------


def _planned(kernels: KernelGraph, run: Sequence[int], lanes: int) -> RowPlan | None:
    before_us = dict(zip(run, accumulate(node_work_us(kernels, index) for index in run), strict=True))

    def copies(index: int, again: int) -> bool:
        name = kernels.nodes[index].output[0]
        return before_us[index] * again / height(kernels, name) / lanes > _copy_us(kernels, name, lanes)

    return plan_rows(kernels, run, lanes, copies)


def _copy_us(kernels: KernelGraph, name: str, lanes: int) -> float:
    """To read and write a tensor, each core some of it."""
    return _HANDOVER_US + 2 * kernels.tensors[name].nbytes / lanes / _BYTES_PER_US


def _gain_us(kernels: KernelGraph, plan: RowPlan, lanes: int) -> float:
    """How much less the nodes take than shared out between channels."""
    *before, last = (kernels.nodes[index].output[0] for index in plan.nodes)
    copied = [name for name in before if any(plan.needed[r, name] != plan.made[name] for r in kernels.readers[name])]
    gained = sum(_saved_us(kernels, plan, index, lanes) for index in plan.nodes)
    return gained - sum(_copy_us(kernels, name, lanes) for name in (*copied, last))


def _saved_us(kernels: KernelGraph, plan: RowPlan, index: int, lanes: int) -> float:
    result = kernels.nodes[index].output[0]
    of_rows = max(stop - first for first, stop in plan.made[result]) / height(kernels, result)
    read_again = sum(kernels.weights[name].nbytes for name in kernels.constants[index]) * (1 - 1 / lanes)
    own_us = node_work_us(kernels, index)
    return own_us * (_of_channels(kernels, index, lanes) - of_rows) - read_again / _BYTES_PER_US


def _of_channels(kernels: KernelGraph, index: int, lanes: int) -> float:
    """The part of a node's time that the slowest core takes where it is shared out between blocks of channels."""
    node = kernels.nodes[index]
    if node.op_type == "Transpose":
        return 1.0
    if node.output[0] in kernels.parts:
        return 1 / lanes
    channels = shape_of(kernels, node.output[0])[1]
    sizes = [-(-(b - a) // kernels.channel_block) for a, b in even_ranges(channels, lanes, kernels.channel_block)]
    if node.op_type != "Conv" or integer(node, "group", 1) > 1:
        return max(sizes) / sum(sizes)
    return _blocks_cost(max(sizes)) / _blocks_cost(sum(sizes))


def _blocks_cost(blocks: int) -> float:
    return blocks // 4 * _SET_COST[4] + _SET_COST[blocks % 4]
