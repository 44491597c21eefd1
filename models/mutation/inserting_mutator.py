"""Layers behind operators, which were not there before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph import GraphView
from iosched.models.mutation.layers import Layer, layers_of
from iosched.models.mutation.matching import Match, Targets


@dataclass(frozen=True)
class InsertingMutator:
    """Puts up to `most` layers behind each match, one behind the other; they keep the shape of what comes out of it.

    Attributes:
        name: begins the names of its choices.
        where: behind what; see `matching`.
        layers: names of layers ("conv3", see `layer_of`), or layers of one's own by name.
        most: how many there are at most.
    """

    name: str
    where: Match
    layers: Sequence[str] | Mapping[str, Layer]
    most: int = 1

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """See `Mutator`."""
        return self.where(graph)

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        layers, source = layers_of(self.layers), targets[-1].outputs[0]
        shape = edit.graph.shape(source)
        for index in range(edit.choose(range(self.most + 1), "inserted")):
            chosen = edit.choose(list(layers), f"layer{index}")
            before = edit.graph.protos.keys()
            after = layers[chosen](edit, source, shape, f"{targets[-1].outputs[0]}/{chosen}")
            if after != source:
                edit.redirect(source, after, but=edit.graph.protos.keys() - before)
                source = after
