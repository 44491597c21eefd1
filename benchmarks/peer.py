"""What another framework's way of running a network looks like to a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Peer:
    """A network that is ready to run on inputs that lie on the GPU.

    Attributes:
        once: runs it once, and tells the microseconds.
        outputs: what it computes, by the names of the model's outputs.
    """

    once: Callable[[], float]
    outputs: Callable[[], Mapping[str, np.ndarray]]
