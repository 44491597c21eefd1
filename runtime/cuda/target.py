"""The GPU that kernels are chosen and written for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """What the lowering looks at of a GPU.

    Attributes:
        capability: compute capability times ten: 90 for 9.0.
        processors: number of streaming multiprocessors.
    """

    capability: int
    processors: int

    @property
    def multiplies_halves(self) -> bool:
        """Whether its tensor cores multiply as `mma.sync` of 16 x 8 does; those of 7.0 are of another shape."""
        return self.capability >= 75

    @property
    def has_tf32(self) -> bool:
        """Whether its tensor cores multiply floats."""
        return self.capability >= 80


H100 = Gpu(capability=90, processors=132)
"""What models are lowered for where no GPU is named: on paper, and in tests."""
