"""Several threads may call one model on a GPU: its runs follow one another."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.plan import View


class OneMemory:
    """Like an executor on a GPU: a run reads the inputs that were uploaded last."""

    inputs = (View("x", "float32", (1,), nbytes=4),)

    def __init__(self) -> None:
        self.x = np.zeros(1, np.float32)

    def run(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.x[:] = given["x"]
        time.sleep(0.001)
        return {"y": self.x.copy()}


def test_each_of_eight_threads_gets_the_outputs_of_its_inputs() -> None:
    spec = TensorSpec("x", "float32", (1,))
    model = CudaModel(cast(Any, OneMemory()), cast(Any, None), inputs={"x": spec})
    with ThreadPoolExecutor(8) as callers:
        found = callers.map(lambda number: model.run({"x": np.float32([number])})["y"][0], range(40))
    assert list(found) == list(range(40))
