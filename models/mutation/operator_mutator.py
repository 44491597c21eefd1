"""Other layers in the place of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.models.errors import UsageError
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph import GraphView
from iosched.models.mutation.layers import Layer, layers_of
from iosched.models.mutation.matching import Match, Targets

KEEP = "keep"
"""Among the layers, what is there already."""


@dataclass(frozen=True)
class OperatorMutator:
    """Puts one of several layers in the place of each match, a node or a chain; what comes out keeps its shape.

    Attributes:
        name: begins the names of its choices.
        where: what is replaced; see `matching`.
        layers: names of layers ("conv3", see `layer_of`), or layers of one's own by name. "keep" leaves what is there.
    """

    name: str
    where: Match
    layers: Sequence[str] | Mapping[str, Layer]

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """See `Mutator`."""
        return self.where(graph)

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        chosen = edit.choose(list(self.layers), "layer")
        if chosen == KEEP:
            return
        layer = layers_of(self.layers if isinstance(self.layers, Mapping) else [chosen])[chosen]
        source = next((name for name in targets[0].inputs if edit.graph.is_computed(name)), None)
        if source is None:
            raise UsageError(f"node {targets[0].name!r} reads nothing that is computed")
        old = targets[-1].outputs[0]
        edit.redirect(old, layer(edit, source, edit.graph.shape(old), f"{old}/{chosen}"))
