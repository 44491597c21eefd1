"""How large the search of a block is, before it is made: the columns of the thesis's table 3.1, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.lattice import Lattice, Pruning, Relation, bits, components
from iosched.scheduler.signature import default_label, group_form


@dataclass(frozen=True)
class Counts:
    """What a search of one block by strategy `concurrent` has to go through.

    Attributes:
        width: the most operators of which no two are connected by a path.
        upper_bound: C(n/d + 2, 2)^d, which no count of transitions exceeds (MLSys 2021, theorem 1).
        states: down-sets without the empty one.
        transitions: pairs of a state and an ending of it.
        schedules: different schedules of the block.
        stages: distinct endings.
        signatures: stages that differ in what they cost, so that each would be measured.
    """

    width: int
    upper_bound: float
    states: int
    transitions: int
    schedules: int
    stages: int
    signatures: int


def count(graph: ComputationGraph, operators: Sequence[str], pruning: Pruning) -> Counts:
    """Counts states, transitions, schedules and stages of the block of these operators, as exact integers.

    Complexity: that of `lattice.build`, and one signature for each distinct stage.
    """
    order = lattices.relation(graph, operators)
    lattice = lattices.build(order, pruning)
    d = width(order)
    return Counts(
        width=d,
        upper_bound=upper_bound(len(order), d),
        states=len(lattice.states) - 1,
        transitions=len(lattice.sources),
        schedules=count_schedules(lattice),
        stages=len(lattice.stages),
        signatures=count_signatures(graph, operators, lattice),
    )


def upper_bound(n: int, d: int) -> float:
    """C(n/d + 2, 2)^d for n operators of width d; n/d need not be whole."""
    return ((n / d + 2) * (n / d + 1) / 2) ** d


def width(order: Relation) -> int:
    """The largest antichain: n less a maximum matching of the order's comparable pairs (Dilworth's theorem)."""
    ancestors: list[int] = []
    for before in order.predecessors:
        ancestors.append(before)
        for other in bits(before):
            ancestors[-1] |= ancestors[other]
    matched: dict[int, int] = {}
    return len(order) - sum(_augment(index, ancestors, matched) for index in range(len(order)))


def _augment(start: int, ancestors: Sequence[int], matched: dict[int, int]) -> bool:
    """Finds an augmenting path for `start`, breadth first, and flips it."""
    came_from: dict[int, int] = {}
    pending = [start]
    for index in pending:
        for other in bits(ancestors[index]):
            if other in came_from:
                continue
            came_from[other] = index
            if other in matched:
                pending.append(matched[other])
                continue
            _flip(other, start, came_from, matched)
            return True
    return False


def _flip(end: int, start: int, came_from: dict[int, int], matched: dict[int, int]) -> None:
    partner_of = {index: other for other, index in matched.items()}
    while True:
        index = came_from[end]
        matched[end] = index
        if index == start:
            return
        end = partner_of[index]


def count_schedules(lattice: Lattice) -> int:
    """Number of paths from the empty state to the block: each is one schedule. Python integers, so exact."""
    ways = np.zeros(len(lattice.states), dtype=object)
    ways[0] = 1
    for first, last in pairwise(lattice.levels[1:].tolist()):
        begin, end = lattice.offsets[first], lattice.offsets[last]
        ways[first:last] = np.add.reduceat(ways[lattice.sources[begin:end]], lattice.offsets[first:last] - begin)
    return int(ways[-1])


def count_signatures(graph: ComputationGraph, operators: Sequence[str], lattice: Lattice) -> int:
    """Number of different signatures among the stages of the block.

    As `stage_signature` would tell them apart, but each group is brought to its canonical form only once.
    """
    plain = default_label(graph)
    labels = {name: plain(graph.by_name[name]) for name in operators}
    columns = [
        *_group_columns(graph, operators, lattice, labels),
        *_sharing_columns(graph, operators, lattice, labels),
    ]
    table = np.stack(columns, axis=1)
    n_groups = len(columns) - len(_shared_inputs(graph, operators))
    table[:, :n_groups].sort(axis=1)
    table[:, n_groups:].sort(axis=1)
    return len(np.unique(table, axis=0))


def _group_columns(
    graph: ComputationGraph, operators: Sequence[str], lattice: Lattice, labels: Mapping[str, str]
) -> list[NDArray[np.int32]]:
    """For the k-th group of each stage, the number of its canonical form; 0 where a stage has no k-th group."""
    rounds = list(components(lattice.stages, lattice.order))
    masks = np.unique(np.concatenate([groups for _, groups in rounds]))
    numbers: dict[str, int] = {}
    forms = []
    for mask in masks.tolist():
        group = tuple(operators[index] for index in bits(mask))
        form = group_form(graph, group, lambda operator: labels[operator.name])
        forms.append(numbers.setdefault(form, len(numbers) + 1))
    number = np.array(forms, dtype=np.int32)
    columns = []
    for where, groups in rounds:
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
    """For each such tensor and stage, the number of the set of labels that read it from outside; 0 for fewer than 2."""
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
