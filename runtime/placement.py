"""The storage of each tensor: its own buffer, or columns of another tensor's buffer.

Operations that only move bytes need no kernel if their operands share a buffer: the operands of a Concat are written
directly into its buffer, and the results of a Split are parts of its operand. Each device decides which tensors may
share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from iosched.runtime.plan import View


@dataclass(frozen=True, eq=False)
class Placement:
    """Storage of every tensor.

    Attributes:
        views: for each tensor, where its elements are.
        elided: positions of the operations that need no kernel.
        copies: for each elided Concat, the operands that must still be copied: (operand, target).
        pitches: for each buffer with several rows, the bytes of a row.
    """

    views: Mapping[str, View]
    elided: frozenset[int]
    copies: Mapping[int, tuple[tuple[str, View], ...]]
    pitches: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Number of rows of each buffer that has several."""
        return {name: self.views[name].nbytes // pitch for name, pitch in self.pitches.items()}

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Tensors whose buffers hold other tensors."""
        return frozenset(view.buffer for name, view in self.views.items() if view.buffer != name)


@dataclass(eq=False)
class StorageMap:
    """Storage while it is being decided: each tensor has its own buffer until it is moved.

    A buffer may be a table of rows; a tensor in it is a range of columns, in all rows. Columns are counted in bytes: a
    buffer with one row has a column for each byte.

    Attributes:
        nbytes: sizes of the tensors.
        host: for each moved tensor, the one that holds it, which may have been moved itself.
        column: its first column there.
    """

    nbytes: Mapping[str, int]
    host: dict[str, str] = field(default_factory=dict)
    column: dict[str, int] = field(default_factory=dict)

    def resolve(self, name: str) -> tuple[str, int]:
        """The tensor whose own buffer holds `name`, and its first column there."""
        column = 0
        while name in self.host:
            column += self.column[name]
            name = self.host[name]
        return name, column

    def move(self, name: str, host: str, column: int) -> None:
        """Store `name`, and everything in its buffer, in `host` from `column` on."""
        self.host[name], self.column[name] = host, column

    def columns(self, names: Sequence[str], rows: int = 1) -> list[int]:
        """First column of each of `names` if they are adjacent in a table of `rows` rows."""
        return [0, *accumulate(self.nbytes[name] // rows for name in names)][:-1]

    def join(
        self, operands: Sequence[str], target: str, may_move: Callable[[str, int], bool], rows: int = 1
    ) -> list[tuple[str, int]]:
        """Move the operands of a Concat into the buffer of its result, where possible.

        Whole buffers move: mostly one operand's, or one that several operands fill together, such as the results of a
        Split.

        Args:
            may_move: whether the buffer of that name may move to that column of `target`.

        Returns:
            The operands that must be copied, with their columns.
        """
        left: list[tuple[str, int]] = []
        moved = 0  # operands before this one are done
        for index, (name, column) in enumerate(zip(operands, self.columns(operands, rows), strict=True)):
            if index < moved:
                continue
            root, count = self._filled(operands[index:], rows)
            if count and root != self.resolve(target)[0] and may_move(root, column):
                self.move(root, target, column)
                moved = index + count
            else:
                left.append((name, column))
        return left

    def _filled(self, operands: Sequence[str], rows: int) -> tuple[str, int]:
        """The buffer of the first operands, and how many of them fill it in order, or 0."""
        root, _ = self.resolve(operands[0])
        column = 0
        for count, name in enumerate(operands, start=1):
            if self.resolve(name) != (root, column):
                break
            column += self.nbytes[name] // rows
            if column * rows == self.nbytes[root]:
                return root, count
        return root, 0
