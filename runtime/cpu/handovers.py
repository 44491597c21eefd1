"""What of the inputs of stages other cores have just written, and what was read here before.

Who is the first to read what another core wrote has it brought from that core's cache. Whoever reads it later finds it
in the caches of its own core. A stage that is measured alone does not know which it is. It is counted as the first one
for those bytes that none of the nodes before it reads, in the order of the graph: so the bytes of a tensor are handed
over once in the sum over the stages of any schedule, and by the right stage in one that keeps this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.placement import Placement
from iosched.runtime.plan import View

Spans = tuple[tuple[int, int], ...]
"""Bytes of a buffer or a view: from each first number to before the second, in order, apart from each other."""

FirstReads = Mapping[tuple[int, str], Spans]
"""For each node and each tensor that it reads, the bytes of the tensor's buffer that no node has read since they were
written."""


def first_reads(kernels: KernelGraph, placement: Placement) -> FirstReads:
    """What each node reads as the first one.

    What a tensor shares bytes with in its buffer, as the parts of a Concat do with all of it, is read with it. Tensors
    of unknown or no size are left out.

    Complexity: O(reads * parts) for each buffer, of which a Concat has as many as terms.
    """
    already: dict[str, Spans] = {}
    found = {}
    for index in range(len(kernels.nodes)):
        for name, view in _read_by(kernels, placement, index):
            if view.shape is None or not view.nbytes:
                continue
            before = already.get(view.buffer, ())
            found[index, name] = _without((view.offset, view.offset + view.nbytes), before)
            already[view.buffer] = _joined((*before, *found[index, name]))
        for view in _written_by(kernels, placement, index):
            spans = already.get(view.buffer, ())
            written = (view.offset, view.offset + view.nbytes)
            already[view.buffer] = tuple(part for span in spans for part in _without(span, (written,)))
    return found


def _read_by(kernels: KernelGraph, placement: Placement, index: int) -> Iterable[tuple[str, View]]:
    """What a node reads, and where; of an elided Concat only what is copied."""
    copied = (name for name, _ in placement.copies.get(index, ()))
    for name in dict.fromkeys(copied if index in placement.elided else kernels.reads[index]):
        if name in placement.views:
            yield name, placement.views[name]


def _written_by(kernels: KernelGraph, placement: Placement, index: int) -> Iterable[View]:
    """Where a node writes: what is added in place is no longer what others have read there."""
    names = () if index in placement.elided else kernels.nodes[index].output
    return (placement.views[name] for name in names if name in placement.views)


def fresh_spans(
    first: FirstReads, placement: Placement, nodes: Iterable[int], given: Iterable[str]
) -> dict[str, Spans]:
    """The bytes of each given buffer that these nodes are the first to read.

    Args:
        first: what `first_reads` says of the nodes' graph.
        placement: where its tensors lie.
        nodes: the nodes of some stages.
        given: the buffers that these stages read and do not compute.
    """
    members = set(nodes)
    fresh: dict[str, list[tuple[int, int]]] = {name: [] for name in given}
    for (index, name), spans in first.items():
        buffer = placement.views[name].buffer
        if index in members and buffer in fresh:
            fresh[buffer] += spans
    return {name: _joined(tuple(spans)) for name, spans in fresh.items()}


def _without(whole: tuple[int, int], taken: Spans) -> Spans:
    """The parts of `whole` that are in none of the `taken`, which are in order."""
    start, stop = whole
    left = []
    for begin, end in taken:
        if start < min(begin, stop):
            left.append((start, min(begin, stop)))
        start = max(start, end)
    return (*left, (start, stop)) if start < stop else tuple(left)


def _joined(spans: Spans) -> Spans:
    """The same bytes, in order, and those that meet as one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)
