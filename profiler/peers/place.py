"""Where a peer runs on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from iosched.models.model import Model
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.inputs import Arrays


@dataclass(frozen=True, eq=False)
class GpuPlace:
    """A GPU, and the model and inputs that a peer is to run there."""

    model: Model
    inputs: Arrays
    precision: Precision
    driver: Driver
    provider: Provider
