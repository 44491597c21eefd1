"""Calls that only move bytes. Placement makes views of them where it can; what is left becomes copies.

They are no kernels of a device: `placement.place_calls` replaces every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Join:
    """Concatenates its reads along `axis`."""

    axis: int

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """numpy's concatenate."""
        np.concatenate(reads, self.axis, out=writes[0])


@dataclass(frozen=True, repr=False)
class Cut:
    """Cuts its one read along `axis` into its writes, in order."""

    axis: int

    def __repr__(self) -> str:
        """The name that this move has in the keys of latencies: those that databases keep still hold."""
        return f"Part(axis={self.axis})"

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Each write gets the next indices of the axis."""
        ends = np.cumsum([array.shape[self.axis] for array in writes])[:-1]
        for target, source in zip(writes, np.split(reads[0], ends, self.axis), strict=True):
            target[...] = source


@dataclass(frozen=True)
class Reshape:
    """The same elements in row-major order under another shape (Reshape, Flatten, Squeeze, Unsqueeze, Identity)."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """numpy's reshape."""
        writes[0][...] = reads[0].reshape(writes[0].shape)
