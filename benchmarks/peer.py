"""What another framework's way of running a network looks like to a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Peer:
    """A network that is ready to run on inputs that lie on the GPU.

    Attributes:
        time: runs it so many times in a row, and tells the microseconds of each; the first finds the GPU idle.
        outputs: what it computes, by the names of the model's outputs; None where that cannot be read back.
    """

    time: Callable[[int], Sequence[float]]
    outputs: Callable[[], Mapping[str, np.ndarray]] | None
