"""Other tensors for operators to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from iosched.models.graph import TensorSpec
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph import GraphView, Node
from iosched.models.mutation.matching import Match, Targets


@dataclass(frozen=True)
class InputMutator:
    """Lets each match read other tensors of the same type and shape, none of which is computed from it.

    Attributes:
        name: begins the names of its choices.
        where: what is to read something else: the first node of each match; see `matching`.
        most: among how many tensors it chooses at most: the one that it reads now, and those computed last before it.
    """

    name: str
    where: Match
    most: int = 4

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """See `Mutator`."""
        return self.where(graph)

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        for place, tensor in enumerate(targets[0].inputs):
            if edit.graph.is_computed(tensor):
                chosen = edit.choose(_alike(edit.graph, targets[0], tensor, self.most), f"input{place}")
                if chosen != tensor:
                    edit.connect(chosen, targets[0], place)


def _alike(graph: GraphView, node: Node, tensor: str, most: int) -> list[str]:
    """`tensor`, and what could be read by `node` in its place, the last computed first."""
    wanted, later = graph.spec(tensor), graph.behind(node.name)
    if wanted is None or wanted.shape is None:
        return [tensor]
    computed = (
        name for one in reversed(graph.nodes) if one.name not in later for name in reversed(one.outputs) if name
    )
    known = (name for name in chain(computed, reversed(graph.inputs)) if name != tensor)
    return [tensor, *islice((name for name in known if _is_like(graph, name, wanted)), most - 1)]


def _is_like(graph: GraphView, name: str, wanted: TensorSpec) -> bool:
    found = graph.spec(name)
    return found is not None and (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
