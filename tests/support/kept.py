"""Choices that are kept in a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Kept:
    """Choices, and whether more may be found by timing."""

    known: dict[str, str] = field(default_factory=dict)
    times: bool = True

    def choice(self, key: str) -> str | None:
        return self.known.get(key)

    def choose(self, key: str, value: str) -> str:
        return self.known.setdefault(key, value)
