"""Where each tensor lives: in a buffer of its own, or in columns of another tensor's buffer.

Operations that only move bytes need no kernel where their operands share a buffer: the operands of a Concat are written
straight into its buffer, and the results of a Split are parts of its operand's. Which tensors may share, and what views
of them look like, is each device's own affair.
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
        copies: for each elided Concat, the operands that must still be copied: (operand, where it goes).
        pitches: for each buffer that is a table of more than one row, the bytes of a row.
    """

    views: Mapping[str, View]
    elided: frozenset[int]
    copies: Mapping[int, tuple[tuple[str, View], ...]]
    pitches: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """For each buffer that is a table of more than one row, how many rows it has."""
        return {name: self.views[name].nbytes // pitch for name, pitch in self.pitches.items()}

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Tensors in whose buffers others live."""
        return frozenset(view.buffer for name, view in self.views.items() if view.buffer != name)


@dataclass(eq=False)
class Homes:
    """Where tensors live while that is still being decided: each in a buffer of its own until it is moved.

    A buffer may be a table of several rows; what lives in it then is a number of columns next to each other, in all
    rows. Columns are counted in bytes, so the columns of a buffer of one row are its bytes.

    Attributes:
        nbytes: sizes of the tensors.
        host: for each tensor that was moved, the one that it was moved into, which may have been moved itself.
        column: the first of its columns there.
    """

    nbytes: Mapping[str, int]
    host: dict[str, str] = field(default_factory=dict)
    column: dict[str, int] = field(default_factory=dict)

    def resolve(self, name: str) -> tuple[str, int]:
        """The tensor in whose own buffer `name` lives, and its first column there."""
        column = 0
        while name in self.host:
            column += self.column[name]
            name = self.host[name]
        return name, column

    def move(self, name: str, host: str, column: int) -> None:
        """Lets `name`, and all that lives in its buffer, live in `host` from `column` on."""
        self.host[name], self.column[name] = host, column

    def columns(self, names: Sequence[str], rows: int = 1) -> list[int]:
        """The first column of each of `names` where they lie one behind the other in a table of so many rows."""
        return [0, *accumulate(self.nbytes[name] // rows for name in names)][:-1]

    def join(
        self, operands: Sequence[str], target: str, may_move: Callable[[str, int], bool], rows: int = 1
    ) -> list[tuple[str, int]]:
        """Moves the operands of a Concat into the buffer of its result, where they can move.

        What moves is a whole buffer, which mostly is that of one operand; several operands that fill a buffer together,
        as the results of a Split do, move with it.

        Args:
            may_move: whether the buffer of that name may move to that column of `target`.

        Returns:
            The operands that must be copied, with their columns.
        """
        left: list[tuple[str, int]] = []
        moved = 0  # operands up to here are done
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
        """The buffer of the first operands, and how many of them fill it, in order and with nothing else; or 0."""
        root, _ = self.resolve(operands[0])
        column = 0
        for count, name in enumerate(operands, start=1):
            if self.resolve(name) != (root, column):
                break
            column += self.nbytes[name] // rows
            if column * rows == self.nbytes[root]:
                return root, count
        return root, 0
