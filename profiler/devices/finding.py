"""What is wrong on a machine, or worth knowing: what, where, and the way out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was found on a machine.

    Attributes:
        what: what was found, in a clause.
        where: what it was found at: a library, a file, a variable.
        way: what to do about it.
        is_broken: whether something does not work until that is done; otherwise it is only a remark.
    """

    what: str
    where: str
    way: str
    is_broken: bool = True
