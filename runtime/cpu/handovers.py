"""Finds the input bytes of a stage that another core has just written and no node has read since.

The first reader of another core's result fetches it from that core's cache; later readers find it in their own caches.
A stage that is measured alone counts as the first reader of the bytes that no earlier node in graph order reads. So
summed over the stages of any schedule, each tensor is handed over once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.placement import Placement
from iosched.runtime.plan import View

Spans = tuple[tuple[int, int], ...]
"""Disjoint half-open byte ranges of a buffer or view, in ascending order."""

FirstReads = Mapping[tuple[int, str], Spans]
"""For each node and tensor that it reads, the buffer's bytes that no node has read since they were written."""


def first_reads(kernels: KernelGraph, placement: Placement) -> FirstReads:
    """The bytes that each node reads first.

    Tensors that share bytes in a buffer, such as a Concat and its operands, count as read together. Tensors of unknown
    or zero size are omitted. O(reads * parts) for each buffer; a Concat has a part for each operand.
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
    """The tensors that a node reads, with their views; for an elided Concat, only the copied ones."""
    copied = (name for name, _ in placement.copies.get(index, ()))
    for name in dict.fromkeys(copied if index in placement.elided else kernels.reads[index]):
        if name in placement.views:
            yield name, placement.views[name]


def _written_by(kernels: KernelGraph, placement: Placement, index: int) -> Iterable[View]:
    names = () if index in placement.elided else kernels.nodes[index].output
    return (placement.views[name] for name in names if name in placement.views)


def fresh_spans(
    first: FirstReads, placement: Placement, nodes: Iterable[int], inputs: Iterable[str]
) -> dict[str, Spans]:
    """The bytes of each input buffer of some stages that these nodes are the first to read."""
    members = set(nodes)
    fresh: dict[str, list[tuple[int, int]]] = {name: [] for name in inputs}
    for (index, name), spans in first.items():
        buffer = placement.views[name].buffer
        if index in members and buffer in fresh:
            fresh[buffer] += spans
    return {name: _joined(tuple(spans)) for name, spans in fresh.items()}


def _without(whole: tuple[int, int], taken: Spans) -> Spans:
    start, stop = whole
    left = []
    for begin, end in taken:
        if start < min(begin, stop):
            left.append((start, min(begin, stop)))
        start = max(start, end)
    return (*left, (start, stop)) if start < stop else tuple(left)


def _joined(spans: Spans) -> Spans:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)
