"""Finds stages and blocks that are equal except for names, and so equally fast.

Groups of a block are compared up to isomorphism, hundreds of thousands at once: operators are coloured by their labels,
then repeatedly by what they read and what reads them (one-dimensional Weisfeiler-Leman), all groups in parallel, with
64-bit hashes as colours. If all colours of a group differ, they are a canonical form. If some stay equal, one of these
operators gets a new colour and refinement continues: operators that refinement cannot distinguish are nearly always
automorphic, so the choice does not matter. Otherwise equal groups get two numbers; unequal ones never share one, hash
collisions aside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iosched.models.graph import ComputationGraph
from iosched.scheduler.lattice import Indices, Lattice, Masks, bits
from iosched.scheduler.signature import outputs_read_outside, sources_inside

BlockKey = tuple[object, ...]


def block_key(graph: ComputationGraph, operators: Sequence[str], labels: Mapping[str, str]) -> BlockKey:
    """Equal for blocks whose operators, in order, agree in everything that a signature of any stage sees.

    That is the label, the source of each input inside or outside the block, and the outputs that are read outside.
    Outside values are numbered by first use.
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
    """For each stage, the number of its class of equal `stage_signature`; (M,).

    Each group is canonicalized once. Time O(M log M) otherwise.
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
    """For the k-th group of each stage, the number of its canonical form; 0 without a k-th group."""
    masks = np.unique(np.concatenate([groups for _, groups in lattice.groups]))
    number = group_numbers(graph, operators, labels, masks)
    columns = []
    for where, groups in lattice.groups:
        column = np.zeros(len(lattice.stages), dtype=np.int32)
        column[where] = number[np.searchsorted(masks, groups)]
        columns.append(column)
    return columns


def _shared_inputs(graph: ComputationGraph, operators: Sequence[str]) -> dict[str, tuple[int, ...]]:
    readers: dict[str, list[int]] = {}
    for index, name in enumerate(operators):
        for tensor in graph.by_name[name].inputs:
            readers.setdefault(tensor, []).append(index)
    return {tensor: tuple(found) for tensor, found in readers.items() if len(found) > 1}


def _sharing_columns(
    graph: ComputationGraph, operators: Sequence[str], lattice: Lattice, labels: Mapping[str, str]
) -> list[NDArray[np.int32]]:
    """A column for each of `_shared_inputs`: for each stage, the number of the set of labels that read it.

    It is 0 if fewer than two operators of the stage read the tensor, or if the stage computes it.
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


Colours = NDArray[np.uint64]

_ROWS = 1 << 14  # groups that are coloured at once
_READ, _WRITTEN, _INDIVIDUAL, _ABSENT, _SECOND = (np.uint64(salt << 40) for salt in (1, 2, 3, 5, 7))


def group_numbers(
    graph: ComputationGraph, operators: Sequence[str], labels: Mapping[str, str], groups: Masks
) -> NDArray[np.int32]:
    """For each group, from 1, the number of its form: labels, edges, and which values leave the group; (G,).

    Complexity: O(G * (operators + edges) * rounds), with few rounds; except for the result, memory is independent of G.
    """
    structure = _Structure.of(graph, operators, labels)
    keys = np.zeros((len(groups), 2), dtype=np.uint64)
    for start in range(0, len(groups), _ROWS):
        keys[start : start + _ROWS] = structure.keys(groups[start : start + _ROWS])
    rows = keys.view(np.dtype((np.void, 16))).ravel()
    numbers: NDArray[np.int32] = (np.unique(rows, return_inverse=True)[1] + 1).astype(np.int32)
    return numbers


@dataclass(frozen=True)
class _Structure:
    """The block's operators and its edges, one for each input that another operator of the block writes."""

    label: Colours  # (n,)
    sources: NDArray[np.int64]  # (E,)
    targets: NDArray[np.int64]  # (E,)
    slots: Colours  # (E,) which input of the target it is, and which output of the source
    outputs: tuple[tuple[int, int | None], ...]  # operator, and the mask of its readers; None if read outside the block

    @classmethod
    def of(cls, graph: ComputationGraph, operators: Sequence[str], labels: Mapping[str, str]) -> _Structure:
        position = {name: index for index, name in enumerate(operators)}
        edges = [
            (position[source], position[name], (slot << 16) + output)
            for name in operators
            for slot, (source, output) in enumerate(sources_inside(graph, name, position))
            if source is not None
        ]
        columns = np.array(edges, dtype=np.int64).reshape(-1, 3)
        return cls(
            np.array([_hash_of(f"{len(graph.by_name[name].inputs)} {labels[name]}") for name in operators], np.uint64),
            columns[:, 0],
            columns[:, 1],
            columns[:, 2].astype(np.uint64),
            tuple((position[name], mask) for name in operators for mask in _reader_masks(graph, name, position)),
        )

    def keys(self, groups: Masks) -> Colours:
        """(G,) -> (G, 2): equal for groups of one form."""
        found = np.zeros((len(groups), 2), dtype=np.uint64)
        alive = np.arange(len(groups))
        bit = np.uint64(1) << np.arange(len(self.label), dtype=np.uint64)
        inside = (groups[:, None] & bit) != 0
        colours = np.where(inside, self._first_colours(groups), _mixed(_ABSENT + bit))
        alike = _n_alike(np.sort(colours, axis=1))
        while len(alive):
            refined = np.where(inside, self._refined(colours, inside), colours)
            ordered = np.sort(refined, axis=1)
            # Groups whose colours already differed are canonical now: this round included every edge.
            done, now = alike == 0, _n_alike(ordered)
            found[alive[done]] = _key(refined[done], inside[done])
            stuck = np.flatnonzero((now == alike) & ~done)
            _individualize(refined, ordered, stuck)
            now[stuck] = _n_alike(np.sort(refined[stuck], axis=1))
            alive, inside, colours, alike = alive[~done], inside[~done], refined[~done], now[~done]
        return found

    def _first_colours(self, groups: Masks) -> Colours:
        colours = np.repeat(self.label[None, :], len(groups), axis=0)
        for number, (operator, readers) in enumerate(self.outputs):
            handed_on = np.ones(len(groups), dtype=np.bool_)
            if readers is not None:
                handed_on = (np.uint64(readers) & ~groups) != 0
            first = next(index for index, (other, _) in enumerate(self.outputs) if other == operator)
            colours[handed_on, operator] += _mixed(np.array([_SECOND + np.uint64(number - first)]))[0]
        return _mixed(colours)

    def _refined(self, colours: Colours, inside: NDArray[np.bool_]) -> Colours:
        """The colours after one more round, from an operator's own colour and those of its neighbours.

        Neighbours' colours are mixed with the edge's positions and summed, so that the order of edges does not matter.
        """
        sums = colours * np.uint64(3)
        for here, there, salt in ((self.targets, self.sources, _READ), (self.sources, self.targets, _WRITTEN)):
            seen = np.where(inside[:, there], _mixed(colours[:, there] + _mixed(self.slots + salt)), np.uint64(0))
            order = np.argsort(here, kind="stable")
            receivers, starts = np.unique(here[order], return_index=True)
            if len(starts):
                sums[:, receivers] += np.add.reduceat(seen[:, order], starts, axis=1)
        return _mixed(sums)


def _reader_masks(graph: ComputationGraph, name: str, position: Mapping[str, int]) -> list[int | None]:
    """For each output of the operator its readers in the block; None if it leaves the block."""
    found: list[int | None] = []
    for tensor in graph.by_name[name].outputs:
        readers = [other for other in graph.successors[name] if tensor in graph.by_name[other].inputs]
        leaves = tensor in graph.outputs or any(other not in position for other in readers)
        found.append(None if leaves else sum(1 << position[other] for other in readers))
    return found


def _individualize(colours: Colours, ordered: Colours, rows: NDArray[np.int64]) -> None:
    if not len(rows):
        return
    twice = ordered[rows, 1:] == ordered[rows, :-1]
    least = ordered[rows, np.argmax(twice, axis=1)]
    column = np.argmax(colours[rows] == least[:, None], axis=1)
    colours[rows, column] = _mixed(least + _INDIVIDUAL)


def _n_alike(ordered: Colours) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (ordered[:, 1:] == ordered[:, :-1]).sum(axis=1)
    return found


def _key(colours: Colours, inside: NDArray[np.bool_]) -> Colours:
    once = np.where(inside, _mixed(colours), np.uint64(0)).sum(axis=1, dtype=np.uint64)
    again = np.where(inside, _mixed(colours + _SECOND), np.uint64(0)).sum(axis=1, dtype=np.uint64)
    return np.stack([once, again], axis=1)


def _mixed(values: Colours) -> Colours:
    """Every bit of the result depends on every bit of the value (Steele, Lea and Flood, OOPSLA 2014, splitmix64)."""
    x = values + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Colours = x ^ (x >> np.uint64(31))
    return mixed


def _hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
