"""A small space of `small_models.branches`: which operators follow a Relu, if any, and how many."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from small_models import branches

from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph_view import GraphView
from iosched.models.mutation.mutator import Targets, by_type
from iosched.models.spaces.space import Space


class Behind:
    """Puts activations behind each Relu; "Conv" does not fit there, and so fails."""

    name = "behind"

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def match(self, graph: GraphView) -> Sequence[Targets]:
        return by_type("Relu")(graph)

    def mutate(self, targets: Targets, edit: Edit) -> None:
        (node,) = targets
        consumers = [each.name for each in edit.graph.consumers(node.name)]
        last = node.name
        for number in range(edit.choose((0, 1, 2), "count")):
            last = edit.create(edit.choose(self._kinds, f"kind{number}"), [last], name=f"{node.name}/{number}").name
        for name in consumers:
            for place, read in enumerate(edit.graph.node(name).inputs):
                if read == node.name != last:
                    edit.connect(last, edit.graph.node(name), place)


SPACE = Space("behind", (Behind("Tanh", "Sigmoid", "Softplus"),))


def narrow(pixels: int) -> onnx.ModelProto:
    """A base model of eight channels."""
    return branches()


def wide(pixels: int) -> onnx.ModelProto:
    """One of sixteen."""
    return branches(channels=16)


EVOLVING = Space("evolving", SPACE.mutators, bases=(narrow, wide), max_mutations=3)
BROKEN = Space("broken", (Behind("Conv"),))
