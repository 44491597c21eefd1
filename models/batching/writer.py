"""Writes the nodes of batched operators, which take what is joined already as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from iosched.models.batching.draft import Draft
from iosched.models.batching.layer import Joined
from iosched.models.batching.unit import Names, Unit


@dataclass(frozen=True, eq=False)
class Writer:
    """Writes units one after the other.

    Attributes:
        draft: what was written.
        results: what is there in joined tensors, by the names that the members have for it.
    """

    draft: Draft
    results: dict[Names, Joined] = field(default_factory=dict)

    def write(self, unit: Unit, axis: int) -> None:
        """Add the nodes of a unit, all of whose feeders were written."""
        computed: dict[Names, Joined] = {}
        for row, (own, _) in enumerate(unit.way(axis)):
            laid: dict[Names, Joined] = {}
            for names in unit.slots(row):
                if unit.is_own(names) or names in computed:
                    joined = computed.get(names) or self._joined(unit, names, own)
                    laid[names] = self.draft.relaid(joined, own, len(names))
            found = unit.rules[row].write(unit.layer(row, laid), own, self.draft)
            outputs = zip(*(node.output for node in unit.rows[row]), strict=True)
            computed.update(zip(outputs, found, strict=False))
        for names in unit.results:
            if names in computed:
                self.results[names] = computed[names]

    def part(self, read: Iterable[str]) -> None:
        """Give the members' results their names, where these are read."""
        wanted = frozenset(read)
        for names, joined in self.results.items():
            if not wanted.isdisjoint(names):
                self.draft.part(joined, names)

    def _joined(self, unit: Unit, names: Names, axis: int) -> Joined:
        if names in self.results:
            return self.results[names]
        return self.draft.join(names, axis, unit.parts.shape(names[0]) or ())
