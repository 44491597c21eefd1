"""The limits on the stages of a search (thesis, section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pruning:
    """At most `r` operators in a group and `s` groups in a stage; None for no limit. The defaults are the thesis's."""

    r: int | None = 3
    s: int | None = 8

    def __post_init__(self) -> None:
        for name, limit in (("r", self.r), ("s", self.s)):
            if limit is not None and limit < 1:
                raise ValueError(f"pruning {name} must be at least 1, not {limit}")


DEFAULT_PRUNING = Pruning()
NO_PRUNING = Pruning(None, None)
