"""A GPU as a device: a model lowered once, then any schedule or stage of it made ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import Any, Self

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph, TensorSpec
from iosched.models.model import Model
from iosched.runtime.compare import Check
from iosched.runtime.cuda.choices import Choices
from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlanChooser, CudnnPlanNames, names_to_text, stage_key
from iosched.runtime.cuda.execute.alone import compare_alone
from iosched.runtime.cuda.execute.dlpack import CALLERS, DeviceRuns, check_names, checked
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.execute.launches import source_calls
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.exchange import DeviceArray, Exchange
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.fusion import fused_by_choice, fused_everywhere
from iosched.runtime.cuda.lower.layout_choice import LayoutChoice, layout_by_choice
from iosched.runtime.cuda.lower.network import Network, is_supported
from iosched.runtime.cuda.lower.plan import Lowering, lower
from iosched.runtime.cuda.onnxruntime.sessions import HostSessions, Sessions
from iosched.runtime.cuda.trials import Trials
from iosched.runtime.plan import Task
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.unit_graph import Unit, join_units

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class CudaModel:
    """A whole model under one schedule; `run` takes and returns arrays by the model's own names.

    Several threads may call it: inputs, arena and outputs lie in one place on the GPU, so runs follow one another.

    Attributes:
        cudnn_plans: names of the chosen cuDNN plans, by the keys of what they are chosen for. Given the same choices,
            the model runs the same kernels again.
        inputs: the model's inputs by name; arrays given to `run` are checked against their types and shapes.
        exchange: reads arrays of other libraries that lie on the GPU; None where that cannot be done.
    """

    executor: CudaExecutor
    lowering: Lowering
    cudnn_plans: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    exchange: Exchange | None = None
    _turn: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    def kernel_count(self) -> int:
        """Kernel launches of one run."""
        return len(self.lowering.plan.tasks)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run of the model.

        Raises:
            UsageError: an input is missing, or not of its type and shape.
        """
        given = self._given(inputs)
        with self._turn:
            found = self.executor.run(given)
        return {name.removesuffix(CALLERS): array for name, array in found.items()}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs on the GPU, with the inputs there."""
        given = self._given(inputs)
        with self._turn:
            return self.executor.time(given, repeats)

    def run_on_device(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, DeviceArray]:
        """One run on arrays that lie on the GPU, read where they lie; outputs are not copied either.

        Inputs are arrays of any library that knows DLPack (PyTorch, CuPy, JAX, ...), of the model's types and shapes,
        row-major; those on the host are copied to the GPU. The model is captured again for arrays at addresses that the
        last few runs did not have, so it pays to fill the same arrays again. An array that does not begin at a
        multiple of 16 bytes is copied on the GPU. The next run overwrites the outputs of this one.

        Args:
            stream: handle of the CUDA stream on which inputs are made and outputs used
                (`torch.cuda.current_stream().cuda_stream`). With it the call returns before the run is done; without,
                when it is done. Inputs on the host are copied before it returns, also from pinned memory.

        Raises:
            UsageError: an input is missing, on another device, not contiguous, or not of its type and shape.
            ExecutionError: something failed on the GPU.
        """
        with self._turn:
            return self._device_runs.run(inputs, stream)

    @cached_property
    def _device_runs(self) -> DeviceRuns:
        if self.exchange is None:
            raise UsageError("arrays that lie on the device cannot be taken here: use run")
        return DeviceRuns(self.executor, self.exchange, self.inputs)

    def close(self) -> None:
        """Gives the memory on the GPU back."""
        self.executor.close()

    def _given(self, inputs: Arrays) -> dict[str, np.ndarray]:
        check_names(self.inputs, inputs)
        arrays = {name: checked(spec, np.asarray(inputs[name])) for name, spec in self.inputs.items()}
        return {view.buffer: arrays[view.buffer.removesuffix(CALLERS)] for view in self.executor.inputs}


class CudaBackend:
    """One model on one GPU.

    Attributes:
        precision: of floats.
        units: what to schedule: the model's own operators, or units of them.
    """

    def __init__(
        self,
        model: Model,
        driver: Driver,
        choose: CudnnPlanChooser,
        precision: Precision,
        lanes: Lanes | None = None,
        *,
        layout: Layout | None = None,
        sessions: Sessions | None = None,
        exchange: Exchange | None = None,
        choices: Choices | None = None,
        units: Sequence[Unit] = (),
    ) -> None:
        """Lowers the operators of `model`.

        Args:
            lanes: the GPU's streams, to be shared with other models on it; by default its own.
            layout: how images lie in memory; by default as `choices` say, or as is best for the precision and the GPU.
            sessions: runs operators that no kernel does; by default onnxruntime on the CPU.
            exchange: reads and hands out arrays that lie on the GPU.
            choices: says in which layout the model is faster, and for which operators one kernel is faster than two,
                or lets that be timed; without it, every operator has two.
            units: operators to schedule as one, see `join_units`.

        Raises:
            ValueError: the model is not one that `is_supported`.
            UsageError: `units` cannot be.
            DeviceLostError: the GPU is lost while kernels are timed.
        """
        self.units = join_units(model.graph, units)
        self.precision = precision
        self.driver = driver
        self._choose = choose
        self._lanes = lanes or Lanes(driver)
        self._sessions, self._exchange = sessions or HostSessions(driver), exchange
        self._trials = Trials(driver, choose, self._lanes, self._sessions)
        preferred = layout or preferred_layout(precision.name, driver.gpu)
        network = Network(model, precision, preferred, gpu=driver.gpu)
        self._layout = LayoutChoice(preferred)
        self._fused: Mapping[str, str] = {}
        if choices is not None and layout is None:
            self._layout = layout_by_choice(network, choices, partial(self._in_turn_us, choices))
            network = network if self.layout is preferred else network.in_layout(self.layout)
        if choices is not None:
            network, self._fused = self._fused_by(choices, network)
        self._network = network

    def _in_turn_us(self, choices: Choices, networks: Sequence[Network]) -> Sequence[Sequence[float]]:
        return self._trials.in_turn_us([self._fused_by(choices, network)[0] for network in networks])

    def _fused_by(self, choices: Choices, network: Network) -> tuple[Network, Mapping[str, str]]:
        return fused_by_choice(network, choices, self._trials.alone_us, self._trials.prepare)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for people about what they may not expect of how the model runs."""
        return *self._layout.notes, *self._choose.notes

    @property
    def layout(self) -> Layout:
        """How images lie in memory."""
        return self._layout.layout

    @staticmethod
    def supports(model: Model) -> bool:
        """Whether `model` can run here: see `lower.is_supported`."""
        return is_supported(model)

    @property
    def graph(self) -> ComputationGraph:
        """The graph to schedule."""
        return self.units.graph

    def lower(self, schedule: Schedule, *, barriers: bool = True) -> Lowering:
        """The plan of the model under `schedule`."""
        return lower(self._network, self.units.expanded(schedule), barriers=barriers)

    def lower_fused(self, schedule: Schedule) -> Lowering:
        """The plan in which one kernel does a depthwise and a pointwise convolution wherever one can."""
        return lower(fused_everywhere(self._network), self.units.expanded(schedule))

    def compile(self, schedule: Schedule, *, barriers: bool = True) -> CudaModel:
        """The model under `schedule`, captured and ready.

        Raises:
            DeviceError: the GPU has not enough memory, or cuDNN no engine.
            ExecutionError: a kernel fails.
        """
        lowering = self.lower(schedule, barriers=barriers)
        self.driver.prepare(source_calls(lowering))
        signatures = [self.signature(stage) for stage in schedule.stages]
        names = [self._choose.of_stage(signature) or FASTEST_ALONE for signature in signatures]
        executor = CudaExecutor(lowering, self.driver, self._choose, self._lanes, self._sessions, names=names)
        plans = {**self._fused, **_cudnn_plans_of(executor, dict(zip(signatures, names, strict=True)), names)}
        inputs = {spec.name: spec for spec in self.graph.inputs}
        return CudaModel(executor, lowering, plans, inputs, self._exchange)

    def compile_stage(self, stage: Stage, names: CudnnPlanNames = FASTEST_ALONE) -> CudaExecutor | None:
        """One stage alone, on random numbers; None where it is to be merged and cannot be.

        Args:
            names: the cuDNN plans to take instead of those that are fastest alone.

        Raises:
            DeviceError: the GPU has not enough memory, or cuDNN no engine.
            ExecutionError: a kernel fails.
        """
        return self._trials.stage(self._network, self.units.expanded_stage(stage), names)

    def compare_alone(self, lowering: Lowering, task: Task, *, rtol: float) -> Check:
        """Runs one task of a plan of this model, and compares what it writes with its meaning in numpy.

        See `alone.compare_alone`, and for what is raised.
        """
        return compare_alone(lowering, task, self.driver, self._choose, self._lanes, rtol=rtol)

    def operator_key(self, name: str) -> str:
        """What the operator's kernels are, and types, shapes and strides of their tensors in the network."""
        return self.units.key(name, self._network.operator_key, self._network.signature)

    def signature(self, stage: Stage) -> str:
        """A name for all stages that have the latency of this one."""
        return self._network.signature(self.units.expanded_stage(stage))

    def cudnn_plans_in(self, stage: Stage) -> CudnnPlanNames | None:
        """The cuDNN plans that are better than the fastest alone in stages like this; None where none were tried."""
        return self._choose.of_stage(self.signature(stage))

    def keep_cudnn_plans(self, stage: Stage, names: CudnnPlanNames) -> CudnnPlanNames:
        """Keeps a choice of cuDNN plans for stages like this one.

        Returns:
            The choice that is kept: where another process has made one before, it is that one.
        """
        return self._choose.keep(self.signature(stage), names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to stop."""


def _cudnn_plans_of(
    executor: CudaExecutor, chosen: Mapping[str, CudnnPlanNames], names: Sequence[CudnnPlanNames]
) -> dict[str, str]:
    """The choices that `executor` runs with: of stages, and alone of kernels that no stage has a choice for."""
    found = {stage_key(signature): names_to_text(own) for signature, own in chosen.items() if own}
    found |= {plan.key: plan.name for stage, plan in executor.cudnn_plans if plan.key not in names[stage]}
    return dict(sorted(found.items()))
