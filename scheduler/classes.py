"""Which stages of a block, and which blocks of a graph, are alike but for names: they take equally long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from iosched.models.graph import ComputationGraph
from iosched.scheduler.isomorphism import group_numbers
from iosched.scheduler.lattice import Indices, Lattice, bits
from iosched.scheduler.signature import outputs_read_outside, sources_inside

BlockKey = tuple[object, ...]


def block_key(graph: ComputationGraph, operators: Sequence[str], labels: Mapping[str, str]) -> BlockKey:
    """Equal for blocks whose operators, taken in order, agree in all that a signature of any stage can see.

    That is, for each operator: its label, where in the block or outside it each input comes from, and which of its
    outputs are read outside the block. Values from outside are numbered by first use.
    """
    position = {name: index for index, name in enumerate(operators)}
    outside: dict[str, int] = {}
    found = []
    for name in operators:
        sources = zip(graph.by_name[name].inputs, sources_inside(graph, name, position), strict=True)
        reads = tuple(
            (-1, outside.setdefault(tensor, len(outside))) if source is None else (position[source], output)
            for tensor, (source, output) in sources
        )
        found.append((labels[name], reads, outputs_read_outside(graph, name, position)))
    return tuple(found)


def stage_classes(
    graph: ComputationGraph, operators: Sequence[str], lattice: Lattice, labels: Mapping[str, str]
) -> Indices:
    """For each stage, the number of its class: the stages that `stage_signature` does not tell apart; (M,).

    Each group is brought to its canonical form only once. Time O(M log M) beside that.
    """
    groups = np.stack(_group_columns(graph, operators, lattice, labels), axis=1)
    groups.sort(axis=1)
    table = groups
    sharing = _sharing_columns(graph, operators, lattice, labels)
    if sharing:
        shared = np.stack(sharing, axis=1)
        shared.sort(axis=1)
        table = np.concatenate([groups, shared], axis=1)
    rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    classes: Indices = np.unique(rows, return_inverse=True)[1].astype(np.int64)
    return classes


def _group_columns(
    graph: ComputationGraph, operators: Sequence[str], lattice: Lattice, labels: Mapping[str, str]
) -> list[NDArray[np.int32]]:
    """For the k-th group of each stage, the number of its canonical form; 0 where a stage has no k-th group."""
    masks = np.unique(np.concatenate([groups for _, groups in lattice.groups]))
    number = group_numbers(graph, operators, labels, masks)
    columns = []
    for where, groups in lattice.groups:
        column = np.zeros(len(lattice.stages), dtype=np.int32)
        column[where] = number[np.searchsorted(masks, groups)]
        columns.append(column)
    return columns


def _shared_inputs(graph: ComputationGraph, operators: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Tensors that two or more operators of the block read, with the readers' positions."""
    readers: dict[str, list[int]] = {}
    for index, name in enumerate(operators):
        for tensor in graph.by_name[name].inputs:
            readers.setdefault(tensor, []).append(index)
    return {tensor: tuple(found) for tensor, found in readers.items() if len(found) > 1}


def _sharing_columns(
    graph: ComputationGraph, operators: Sequence[str], lattice: Lattice, labels: Mapping[str, str]
) -> list[NDArray[np.int32]]:
    """A column for each tensor of `_shared_inputs`: for each stage, the number of the set of labels that read it.

    The number is 0 where fewer than two operators of the stage read it, or where the stage computes the tensor itself.
    """
    position = {name: index for index, name in enumerate(operators)}
    numbers: dict[tuple[str, ...], int] = {}
    columns = []
    for tensor, readers in _shared_inputs(graph, operators).items():
        source = position.get(graph.producer.get(tensor, ""))
        reading = lattice.stages & np.uint64(sum(1 << index for index in readers))
        if source is not None:
            reading[(lattice.stages >> np.uint64(source)) & np.uint64(1) == 1] = 0
        masks, inverse = np.unique(reading, return_inverse=True)
        names = [tuple(sorted(labels[operators[index]] for index in bits(mask))) for mask in masks.tolist()]
        found = [numbers.setdefault(key, len(numbers) + 1) if len(key) > 1 else 0 for key in names]
        columns.append(np.array(found, dtype=np.int32)[inverse])
    return columns
