"""Kernels of the CPU executors: sub-models for onnxruntime, and plain copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from iosched.runtime.cpu.invoked import InvokedNode

# The "location" of an initializer without payload. It names no file, but onnxruntime insists that what it names exists.
# With any other text a native session still works, but is made by way of a passing copy of every weight.
EXTERNAL_LOCATION = "."


@dataclass(frozen=True, eq=False)
class Program:
    """One kernel that onnxruntime runs as a session of its own.

    Attributes:
        write: writes `model`.
        inputs: names of the graph inputs, in the order of a task's `reads`.
        outputs: names of the graph outputs, in the order of a task's `writes`.
        weights: arrays of the initializers that stand in `model` without payload (`data_location` EXTERNAL, `location`
            EXTERNAL_LOCATION). C-contiguous, shared by all sessions that name them, never copied; small initializers
            and strings may stay in `model` instead.
        cores: over how many cores onnxruntime shares each operator out. Where they are several they are those of all
            lanes, which rest meanwhile.
        invoked: the one node of the program, where its kernel can be asked for without a session.
    """

    write: Callable[[], bytes]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[tuple[str, np.ndarray], ...] = ()
    cores: int = 1
    invoked: InvokedNode | None = None

    @cached_property
    def model(self) -> bytes:
        """Serialized ONNX, loaded with every optimization off: it is what onnxruntime itself made before."""
        return self.write()


@dataclass(frozen=True)
class Copy:
    """Copies the bytes of the task's one read to its one write."""


Kernel = Program | Copy
