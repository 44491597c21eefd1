"""A GPU as a device: a model lowered once, then any schedule or stage of it made ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.runtime.cuda.driver import Driver
from iosched.runtime.cuda.executor import CudaExecutor, PlanChooser
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lanes import Lanes
from iosched.runtime.cuda.lower import Lowering, LoweringSettings, Network, is_supported, lower, lower_stage
from iosched.scheduler.schedule import Schedule, Stage

Arrays = Mapping[str, np.ndarray]
_CALLERS = "@caller"
_RANDOM_BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class CudaModel:
    """A whole model under one schedule; `run` takes and returns arrays by the model's own names."""

    executor: CudaExecutor
    lowering: Lowering

    @property
    def kernel_count(self) -> int:
        """Kernel launches of one run."""
        return sum(len(lane) for lane in self.lowering.plan.lanes)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run of the model."""
        found = self.executor.run(self._given(inputs))
        return {name.removesuffix(_CALLERS): array for name, array in found.items()}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs on the GPU, with the inputs there."""
        return self.executor.time(self._given(inputs), repeats)

    def close(self) -> None:
        """Gives the memory on the GPU back."""
        self.executor.close()

    def _given(self, inputs: Arrays) -> dict[str, np.ndarray]:
        return {view.buffer: inputs[view.buffer.removesuffix(_CALLERS)] for view in self.executor.inputs}


class CudaBackend:
    """One model on one GPU.

    Attributes:
        precision: of floats.
        graph: what to schedule: the model's own operators.
    """

    def __init__(
        self, model: Model, driver: Driver, choose: PlanChooser, precision: Precision, lanes: Lanes | None = None
    ) -> None:
        """Lowers the operators of `model`.

        Args:
            lanes: the GPU's streams, where others run on it too.

        Raises:
            ValueError: the model is not one that `is_supported`.
        """
        self.precision = precision
        self.driver = driver
        self._choose = choose
        self._lanes = lanes or Lanes(driver)
        self._network = Network(model, precision)

    @property
    def chosen_plans(self) -> Mapping[str, str]:
        """cuDNN's plans chosen so far."""
        return self._choose.chosen

    @staticmethod
    def supports(model: Model) -> bool:
        """Whether `model` can run here: see `lower.is_supported`."""
        return is_supported(model)

    @property
    def graph(self) -> ComputationGraph:
        """The graph to schedule."""
        return self._network.model.graph

    def lower(self, schedule: Schedule, *, barriers: bool = True) -> Lowering:
        """The plan of the model under `schedule`."""
        return lower(self._network, schedule, LoweringSettings(barriers=barriers))

    def compile(self, schedule: Schedule, *, barriers: bool = True) -> CudaModel:
        """The model under `schedule`, captured and ready.

        Raises:
            DeviceError: the GPU has not enough memory, or cuDNN no engine.
            ExecutionError: a kernel fails.
        """
        lowering = self.lower(schedule, barriers=barriers)
        return CudaModel(CudaExecutor(lowering, self.driver, self._choose, self._lanes), lowering)

    def compile_stage(self, stage: Stage) -> CudaExecutor | None:
        """One stage alone, on random numbers; None where it is to be merged and cannot be.

        Raises:
            DeviceError: the GPU has not enough memory, or cuDNN no engine.
            ExecutionError: a kernel fails.
        """
        lowering = lower_stage(self._network, stage)
        if lowering is None:
            return None
        executor = CudaExecutor(lowering, self.driver, self._choose, self._lanes)
        executor.upload({view.buffer: _random(view.shape or (), view.dtype) for view in executor.inputs})
        return executor

    def layout_of(self, name: str) -> tuple[object, ...]:
        """The kernels of an operator, with types, shapes and strides of their tensors in the network."""
        return self._network.layout_of(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to stop."""


def _random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Ordinary floats, or zeros, which every index may be; zeros as floats would run faster than real data."""
    if np.dtype(dtype).kind == "f":
        block = np.random.default_rng(0).standard_normal(_RANDOM_BLOCK, np.float32).astype(dtype)
        return np.resize(block, shape)  # again and again: drawing all of a large batch would take longer than timing it
    return np.zeros(shape, dtype)
