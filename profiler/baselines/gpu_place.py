"""What a peer is given to run on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from iosched.models.model import Model
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.inputs import Arrays


@dataclass(frozen=True, eq=False)
class GpuPlace:
    """A GPU, and the model, inputs and precision that a peer runs there."""

    model: Model
    inputs: Arrays
    precision: Precision
    driver: Driver
    provider: Provider
