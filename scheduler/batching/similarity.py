"""How alike two models are: the operators that both have in the same order (DPBat, algorithm 1)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def common_length(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence.

    Bit i of a number stands for `one[i]`, so a row of the table is one addition of long integers (Crochemore et al.,
    2001). Complexity: O(len(other) * len(one) / 64) beside hashing.
    """
    places: dict[Hashable, int] = {}
    for index, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << index
    whole = (1 << len(one)) - 1
    row = whole
    for item in other:
        hits = row & places.get(item, 0)
        row = (row + hits | row - hits) & whole
    return len(one) - row.bit_count()


def similarity(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """2 * (length of the longest common subsequence) / (length of both): 1 for equal sequences, 0 for unlike ones."""
    total = len(one) + len(other)
    return 2 * common_length(one, other) / total if total else 1.0


def similarities(sequences: Sequence[Sequence[Hashable]]) -> tuple[tuple[float, ...], ...]:
    """The similarity of every two sequences, as a symmetric square; equal pairs are computed once."""
    keys = [tuple(sequence) for sequence in sequences]
    known: dict[tuple[tuple[Hashable, ...], tuple[Hashable, ...]], float] = {}
    square = [[1.0] * len(keys) for _ in keys]
    for row, one in enumerate(keys):
        for column in range(row):
            pair = one, keys[column]
            if pair not in known:
                known[pair] = similarity(*pair)
            square[row][column] = square[column][row] = known[pair]
    return tuple(map(tuple, square))
