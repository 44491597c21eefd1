"""What operators must have in common to become one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Likeness:
    """What an operator is, as far as batching goes by it.

    Attributes:
        key: equal for operators that are alike in type, attributes and the shapes of all that they read and write.
        batches: whether operators of this key can become one.
        spreads: whether such a group takes one tensor that all of its operators read as it is, not repeated.
    """

    key: str
    batches: bool = True
    spreads: bool = False
