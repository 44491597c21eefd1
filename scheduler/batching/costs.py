"""What batching asks of a device: how much one operator for several models saves, and what it costs to bring tensors
together and to take them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from iosched.models.graph import Operator, TensorSpec


class BatchingCosts(Protocol):
    """Prices in microseconds; each depends on how many models take part."""

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """How much faster one operator is that does the work of `count`, than these in the best other way.

        Negative where it is slower. What it costs to join what they read and to part the result is not in it.

        Args:
            operators: alike operators of some of the models. Weights of one name are the same weights.
            count: of how many models; two or more.
        """
        ...

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """Latency of bringing `count` tensors like this one together into one."""
        ...

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """Latency of taking a tensor apart into `count` like this one."""
        ...


class EqualGains:
    """Every operator that is not run on its own is worth the same, and nothing is paid for it: greedy batching."""

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """One for each operator beside the first."""
        return float(count - 1)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """Nothing."""
        return 0.0

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """Nothing."""
        return 0.0


@dataclass(frozen=True)
class Even:
    """Prices for two and for `size` models; those between are taken to grow evenly, so that they need not be asked for.

    Attributes:
        costs: what is asked.
        size: more models than that are never asked for.
    """

    costs: BatchingCosts
    size: int

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """See `BatchingCosts.gain_us`."""
        return self._between(count, lambda size: self.costs.gain_us(operators, size))

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """See `BatchingCosts.join_us`."""
        return self._between(count, lambda size: self.costs.join_us(tensor, size))

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """See `BatchingCosts.part_us`."""
        return self._between(count, lambda size: self.costs.part_us(tensor, size))

    def _between(self, count: int, price_us: Callable[[int], float]) -> float:
        if count in (2, self.size):
            return price_us(count)
        two_us, all_us = price_us(2), price_us(self.size)
        return two_us + (all_us - two_us) * (count - 2) / (self.size - 2)


@dataclass(frozen=True)
class Spread:
    """Prices as they are for `size` models, spread evenly over all that join the first one.

    What two models do not gain by themselves may pay once many more have joined them.
    """

    costs: BatchingCosts
    size: int

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """See `BatchingCosts.gain_us`."""
        return self.costs.gain_us(operators, self.size) * self._part(count)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """See `BatchingCosts.join_us`."""
        return self.costs.join_us(tensor, self.size) * self._part(count)

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """See `BatchingCosts.part_us`."""
        return self.costs.part_us(tensor, self.size) * self._part(count)

    def _part(self, count: int) -> float:
        return (count - 1) / (self.size - 1)
