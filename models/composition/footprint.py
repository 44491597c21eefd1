"""How much memory models take, alone and together, before a device has placed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model


@dataclass(frozen=True)
class Footprint:
    """Memory of one model.

    Attributes:
        weights: the bytes of each weight, by the hash of its content.
        activations_nbytes: the most that tensors take at once which are computed or fed, and still read later, where
            operators run one after another.
    """

    weights: Mapping[str, int]
    activations_nbytes: int

    @property
    def nbytes(self) -> int:
        """All of it."""
        return sum(self.weights.values()) + self.activations_nbytes


def footprint_of(model: Model) -> Footprint:
    """The footprint of a model; O(bytes of weights + operators + edges)."""
    weights = {model.weight_digests[name]: array.nbytes for name, array in model.weights.items()}
    return Footprint(weights, _most_alive(model.graph))


def together_nbytes(footprints: Iterable[Footprint]) -> int:
    """What models take in one graph that runs them side by side: equal weights once, and the activations of all."""
    weights: dict[str, int] = {}
    activations = 0
    for footprint in footprints:
        weights.update(footprint.weights)
        activations += footprint.activations_nbytes
    return sum(weights.values()) + activations


def _most_alive(graph: ComputationGraph) -> int:
    """The most bytes of tensors alive at once; inputs are alive from the beginning, and outputs to the end."""
    size = {name: spec.nbytes for name, spec in graph.tensor.items()}
    last = {tensor: index for index, operator in enumerate(graph.operators) for tensor in operator.inputs}
    last.update(dict.fromkeys(graph.outputs, len(graph.operators)))
    alive = {spec.name for spec in graph.inputs}
    now = most = sum(size[name] for name in alive)
    for index, operator in enumerate(graph.operators):
        now += sum(size.get(name, 0) for name in operator.outputs)
        alive.update(operator.outputs)
        most = max(most, now)
        gone = {name for name in (*operator.inputs, *operator.outputs) if last.get(name, index) <= index} & alive
        now -= sum(size.get(name, 0) for name in gone)
        alive -= gone
    return most
