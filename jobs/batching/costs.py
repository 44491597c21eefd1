"""What batching saves and costs on a device, learned from the best schedules of samples: of single operators of several
models, batched and apart, and of what joins and parts their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from iosched.models.batching.sample import apart, joining, parting, sample
from iosched.models.graph import Operator, TensorSpec
from iosched.models.model import Model
from iosched.models.wiring import standard_opset
from iosched.scheduler.batching.ensemble import Ensemble

TOO_DEAR_US = 1e12
"""More than anything saves; finite, since prices are added and subtracted."""


@dataclass(frozen=True, eq=False)
class SampledCosts:
    """Prices for `Plan` (see `BatchingCosts`), each from a sample that is scheduled once.

    Operators of one key have one price, for as many models, with weights that are equal or not, and reading one tensor
    or not. Tensors are joined and parted along their first axis whatever they are joined along in the end.

    Attributes:
        model: the composed model.
        ensemble: its members.
        best_us: the latency of a model under the best schedule for it; may measure, and is asked once for each sample.
            Infinite where it is not known: what it is the price of is then too dear.
        share: how much of what operators take apart, sample by sample, they take where whole models run side by side.
            Lanes then need not wait for each other behind every operator, so it may be a good deal less than 1.
    """

    model: Model
    ensemble: Ensemble
    best_us: Callable[[Model], float]
    share: float = 1.0
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """The share of the best schedule of the operators apart that counts, less that of the batched one."""
        names, key = self._sampled(operators, count)
        apart_us = self.apart_us(operators, count)
        one_us = self._once(("one", *key), lambda: self.best_us(sample(self.model, names)))
        return self.share * apart_us - one_us if isfinite(apart_us) and isfinite(one_us) else -TOO_DEAR_US

    def apart_us(self, operators: Sequence[Operator], count: int) -> float:
        """The best schedule of `count` operators like these apart, all of it; infinite where it is not known."""
        names, key = self._sampled(operators, count)
        return self._once(("apart", *key), lambda: self.best_us(apart(self.model, names)))

    def _sampled(self, operators: Sequence[Operator], count: int) -> tuple[list[str], tuple[object, ...]]:
        """The operators of a sample, and what it has in common with others that take as long."""
        names = [operators[place % len(operators)].name for place in range(count)]
        weights = {tuple(spec.name for spec in operator.weights) for operator in operators}
        reads = {self.ensemble.reads[operator.name] for operator in operators}
        return names, (self.ensemble.likeness[names[0]].key, count, len(weights) == 1, len(reads) == 1)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """The best schedule of a Concat."""
        return self._moved("join", tensor, count, joining)

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """The best schedule of a Split."""
        return self._moved("part", tensor, count, parting)

    def _moved(self, what: str, tensor: TensorSpec, count: int, make: Callable[[TensorSpec, int, int], Model]) -> float:
        opset = standard_opset(self.model.proto)
        key = (what, tensor.dtype, tensor.shape, count)
        return min(self._once(key, lambda: self.best_us(make(tensor, count, opset))), TOO_DEAR_US)

    def _once(self, key: tuple[object, ...], find: Callable[[], float]) -> float:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]
