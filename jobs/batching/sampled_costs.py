"""Gains and costs of batching on a device, from the best schedules of samples: single operators of several models,
batched and separate, and the Concat and Split between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite

from iosched.models.batching.ensemble import Ensemble
from iosched.models.batching.rewrite import joining, parting, sample
from iosched.models.composition.compose import disjoint_union
from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import Operator, TensorSpec
from iosched.models.model import Model

TOO_DEAR_US = 1e12
"""More than any saving; finite, since prices are added and subtracted."""


Key = tuple[str, int, bool, bool]
"""The key of a group's operators, their number, and whether they have equal weights and read the same tensor."""


@dataclass(frozen=True, eq=False)
class SampledCosts:
    """Prices for `Plan` (see `BatchingCosts`), each from a sample that is scheduled once.

    The price of a group depends on its `Key` only. Tensors are joined and split along their first axis in samples,
    whichever axis the batched model uses.

    Attributes:
        model: the composed model.
        ensemble: its members.
        best_us: the latency of a model under the best schedule for it; may measure, and is called once per sample.
            Infinite if unknown, which makes the price prohibitive.
        share: latency of operators in whole models side by side over that of separate samples. Lanes then wait less for
            each other, so it may be well below 1.
        in_turn: whether separate operators run one after another, so one sample gives the price of any number.
    """

    model: Model
    ensemble: Ensemble
    best_us: Callable[[Model], float]
    share: float = 1.0
    in_turn: bool = False
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)
    _samples: dict[str, Model] = field(default_factory=dict)

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """`share` of the latency of the separate operators, less that of the batched one."""
        key = self._key(operators, count)
        separate_us = self._separate_us(key, operators)
        one_us = self._once(("one", *key), lambda: self.best_us(sample(self._graph, _repeated(operators, key[1]))))
        return self.share * separate_us - one_us if isfinite(separate_us) and isfinite(one_us) else -TOO_DEAR_US

    def separate_us(self, operators: Sequence[Operator], count: int) -> float:
        """Latency of `count` separate operators like these; infinite if unknown."""
        return self._separate_us(self._key(operators, count), operators)

    def _key(self, operators: Sequence[Operator], count: int) -> Key:
        """Samples with this key take equally long."""
        first, *others = operators
        reads, weights = self.ensemble.reads[first.name], self._weights[first.name]
        reads_one = all(self.ensemble.reads[other.name] == reads for other in others)
        has_one = all(self._weights[other.name] == weights for other in others)
        return self.ensemble.likeness[first.name].key, count, has_one, reads_one

    def _separate_us(self, key: Key, operators: Sequence[Operator]) -> float:
        if self.in_turn:
            return key[1] * self._once(("alone", key[0]), lambda: self.best_us(self._alone(operators[0])))
        return self._once(
            ("apart", *key), lambda: self.best_us(disjoint_union([*map(self._alone, _repeated(operators, key[1]))]))
        )

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """Latency of the best schedule of a Concat."""
        return self._moved(joining, tensor, count)

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """Latency of the best schedule of a Split."""
        return self._moved(parting, tensor, count)

    def _moved(self, make: Callable[[TensorSpec, int, int], Model], tensor: TensorSpec, count: int) -> float:
        key = (make, tensor.dtype, tensor.shape, count)
        return min(self._once(key, lambda: self.best_us(make(tensor, count, self._graph.opset))), TOO_DEAR_US)

    @cached_property
    def _weights(self) -> Mapping[str, tuple[str, ...]]:
        """Weight names by operator; equal names mean equal weights."""
        return {each.name: tuple(spec.name for spec in each.weights) for each in self.model.graph.operators}

    @cached_property
    def _graph(self) -> EditableGraph:
        return EditableGraph.of(self.model.proto, self.model.weights, self.model.graph.tensor)

    def _alone(self, operator: Operator) -> Model:
        if operator.name not in self._samples:
            self._samples[operator.name] = sample(self._graph, [operator])
        return self._samples[operator.name]

    def _once(self, key: tuple[object, ...], find: Callable[[], float]) -> float:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]


def _repeated(operators: Sequence[Operator], count: int) -> list[Operator]:
    return [operators[place % len(operators)] for place in range(count)]
