"""What changes a model in one way at several places: the contract of all mutators (Retiarii, OSDI 2020, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph import GraphView
from iosched.models.mutation.matching import Targets


class Mutator(Protocol):
    """Finds targets in a graph, and changes the graph at each of them.

    Both methods must do the same whenever they are called with the same graph and choices: no chance, no clock.
    """

    @property
    def name(self) -> str:
        """Begins the names of its choices; no other mutator of a space has it."""

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """All places where it has something to change; `matching` has the usual ones."""

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """Change the graph at one of these places: one call is one instance of the mutator.

        Afterwards shapes have to fit together, and nothing may read what was deleted. Nodes that lead to no output any
        more are deleted then.
        """
