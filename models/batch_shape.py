"""Shapes of inputs in which the batch size is left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BatchShape = tuple[int | str, ...]
"""The shape of an input; a text stands for the batch size."""


@dataclass(frozen=True)
class DynamicBatchSpec:
    """Type and shape of one tensor whose batch is left open.

    `dtype` is as in `TensorSpec`. In `shape` a text stands for the batch size; it is None where it is known only at
    run time.
    """

    name: str
    dtype: str
    shape: BatchShape | None


def at_batch(inputs: Mapping[str, BatchShape], batch_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs at one batch size."""
    return {name: tuple(batch_size if isinstance(dim, str) else dim for dim in shape) for name, shape in inputs.items()}
