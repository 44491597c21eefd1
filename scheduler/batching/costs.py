"""Costs of batching on a device: the gain of one operator for several models, and the cost of joining and splitting
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from iosched.models.graph import Operator, TensorSpec


class BatchingCosts(Protocol):
    """Costs in microseconds; each depends on the number of models."""

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """Saving of one batched operator over the best other way to run these `count`; negative if slower.

        Joining inputs and splitting the result are not included.

        Args:
            operators: equal operators of some of the models. Weights of one name are the same weights.
            count: number of models; two or more.
        """
        ...

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """Latency of joining `count` tensors like this one."""
        ...

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """Latency of splitting a tensor into `count` like this one."""
        ...


class EqualGains:
    """Every batched operator gains the same, and joining is free: greedy batching."""

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        """One for each operator after the first."""
        return float(count - 1)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        """Zero."""
        return 0.0

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        """Zero."""
        return 0.0


@dataclass(frozen=True)
class DerivedCosts:
    """Costs derived from others.

    Attributes:
        at: computes a cost, given the other cost as a function of the number of models, and that number.
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
    """Costs requested for two and for `size` models, with linear interpolation between them."""

    def at(price_us: Callable[[int], float], count: int) -> float:
        if count in (2, size):
            return price_us(count)
        two_us, all_us = price_us(2), price_us(size)
        return two_us + (all_us - two_us) * (count - 2) / (size - 2)

    return DerivedCosts(costs, at)


def spread(costs: BatchingCosts, size: int) -> BatchingCosts:
    """The costs for `size` models, spread evenly over all models after the first.

    A match that costs more than it saves for two models may pay once many more have joined.
    """
    return DerivedCosts(costs, lambda price_us, count: price_us(size) * ((count - 1) / (size - 1)))
