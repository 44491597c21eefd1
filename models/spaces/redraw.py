"""A mutator for spaces of complete networks: differences from the base become primitives.

Such a space is a plan made of choices, and a function that writes a plan's network. A variant's network is compared
with the base node by node, by name: equal nodes stay, others are replaced or created, and the rest is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, Protocol, TypeVar

import numpy as np
import onnx

from iosched.models.load import load_model
from iosched.models.mutation.edit import Candidate, Edit, Question, question_name
from iosched.models.mutation.graph_view import GraphView, Node, view_of
from iosched.models.mutation.mutator import Targets
from iosched.models.spaces.space import MIN_PIXELS, Space
from iosched.models.zoo.network import Network

Plan = TypeVar("Plan")


class Choose(Protocol):
    """Chooses one of the candidates; `what` names the purpose."""

    def __call__(self, candidates: Sequence[Candidate], what: str) -> Candidate:
        """The chosen candidate."""


@dataclass(frozen=True)
class Redraw(Generic[Plan]):
    """Writes the network of a plan in place of the base.

    Attributes:
        name: the prefix of its choices.
        plan: makes a plan of choices; its questions do not depend on the answers.
        draw: writes the network of a plan for square images, its only input; the output's name is constant.
        base: the plan of the base model.
    """

    name: str
    plan: Callable[[Choose], Plan]
    draw: Callable[[Network, Plan, int], onnx.ModelProto]
    base: Plan

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """The output of a graph that equals the base; nothing in others."""
        pixels = _pixels(graph)
        if pixels is None:
            return []
        base = {node.output[0]: node.op_type for node in self._drawn(self.base, pixels).graph.node}
        is_base = base == {node.name: node.type for node in graph.nodes}
        return [(graph.node(output),) for output in graph.outputs.values()] if is_base else []

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """Turn the graph into the network of the chosen plan."""
        pixels = _pixels(edit.graph)
        assert pixels is not None, "matched"
        plan = self.plan(edit.choose)
        target = view_of(load_model(self._drawn(plan, pixels).SerializeToString()))
        for node in target.nodes:
            _write(edit, node, target)

    def base_proto(self, pixels: int) -> onnx.ModelProto:
        """The base model: input (1, 3, pixels, pixels)."""
        return self.draw(Network(self.name), self.base, pixels)

    def space(self) -> Space:
        """The space of this mutator alone."""
        size = prod(len(question.candidates) for question in self.questions())
        return Space(self.name, (self,), base=self.base_proto, size=size)

    def questions(self) -> tuple[Question, ...]:
        """All questions of `plan`, in order."""
        (output,) = self._drawn(self.base, MIN_PIXELS).graph.output
        asked: list[Question] = []

        def first(candidates: Sequence[Candidate], what: str) -> Candidate:
            if len(candidates) > 1:
                name = question_name(f"{self.name}[{output.name}]", what, candidates, 0)
                asked.append(Question(name, tuple(candidates)))
            return candidates[0]

        self.plan(first)
        return tuple(asked)

    def _drawn(self, plan: Plan, pixels: int) -> onnx.ModelProto:
        return self.draw(Network(self.name, blank=True), plan, pixels)


def _pixels(graph: GraphView) -> int | None:
    """The width of the images, the graph's only input; None for other inputs."""
    spec = graph.spec(graph.inputs[0]) if len(graph.inputs) == 1 else None
    return spec.shape[-1] if spec is not None and spec.shape else None


def _write(edit: Edit, node: Node, target: GraphView) -> None:
    inputs, weights = _computed(node, target), _weights(node, target)
    if not edit.graph.has_node(node.name):
        edit.create(node.type, inputs, name=node.name, attributes=node.attributes, weights=weights)
        return
    old = edit.graph.node(node.name)
    if _signature(old, edit.graph) == _signature(node, target):
        return
    dropped = dict.fromkeys(old.attributes.keys() - node.attributes.keys()) if old.type == node.type else {}
    edit.replace(old, node.type, attributes={**dropped, **node.attributes}, weights=weights, inputs=inputs)


def _signature(node: Node, graph: GraphView) -> tuple[object, ...]:
    weights = {
        place: (graph.weights[node.inputs[place]].dtype, given if isinstance(given, tuple) else given.tolist())
        for place, given in _weights(node, graph).items()
    }
    return node.type, node.outputs, dict(node.attributes), _computed(node, graph), weights


def _computed(node: Node, graph: GraphView) -> tuple[str, ...]:
    return tuple("" if name in graph.weights else name for name in node.inputs)


def _weights(node: Node, graph: GraphView) -> dict[int, tuple[int, ...] | np.ndarray]:
    """The node's weights by place: shapes of seeded ones, else values."""
    found = {place: graph.weights[name] for place, name in enumerate(node.inputs) if name in graph.weights}
    seeds = {place: array.dtype.kind == "f" and array.size > 1 for place, array in found.items()}
    return {place: array.shape if seeds[place] else array for place, array in found.items()}
