"""What batching asks of a device: how much one operator for several models saves, and what it costs to bring tensors
together and to take them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
class Repriced:
    """Prices that follow from others.

    Attributes:
        costs: the others.
        at: computes a price from the number of models that take part and the other price as a function of that number.
    """

    costs: BatchingCosts
    at: Callable[[Callable[[int], float], int], float]

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """See `BatchingCosts.gain_us`."""
        return self.at(partial(self.costs.gain_us, operators), count)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """See `BatchingCosts.join_us`."""
        return self.at(partial(self.costs.join_us, tensor), count)

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """See `BatchingCosts.part_us`."""
        return self.at(partial(self.costs.part_us, tensor), count)


def interpolated(costs: BatchingCosts, size: int) -> BatchingCosts:
    """Prices of which those for two and for `size` models are asked for; those between grow linearly."""

    def at(price_us: Callable[[int], float], count: int) -> float:
        if count in (2, size):
            return price_us(count)
        two_us, all_us = price_us(2), price_us(size)
        return two_us + (all_us - two_us) * (count - 2) / (size - 2)

    return Repriced(costs, at)


def spread(costs: BatchingCosts, size: int) -> BatchingCosts:
    """The prices for `size` models, spread evenly over all models beside the first.

    A match of two models that does not pay may pay once many more have joined them.
    """
    return Repriced(costs, lambda price_us, count: price_us(size) * ((count - 1) / (size - 1)))
