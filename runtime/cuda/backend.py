"""The GPU backend: lowers a model once, then compiles any schedule or stage of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any, Self

import numpy as np

from iosched.models.errors import DeviceError, UsageError
from iosched.models.graph import ComputationGraph, TensorSpec
from iosched.models.model import Model
from iosched.runtime.compare import Check
from iosched.runtime.cuda.cudnn.chooser import (
    FASTEST_ALONE,
    Choices,
    CudnnPlanChooser,
    CudnnPlanNames,
    names_to_text,
    stage_key,
)
from iosched.runtime.cuda.execute.dlpack import InPlaceRuns, check_names, checked
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.execute.kernel_check import check_kernel
from iosched.runtime.cuda.execute.launches import source_calls
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.exchange import DeviceArray, Exchange
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.lowered_model import CALLER_SUFFIX, LoweredModel, is_supported
from iosched.runtime.cuda.lower.lowering import Lowering, lower
from iosched.runtime.cuda.lower.timed_choices import (
    Fusion,
    LayoutChoice,
    crash_notes,
    fused_by_choice,
    fused_everywhere,
    layout_by_choice,
    layout_key,
)
from iosched.runtime.cuda.onnxruntime.sessions import HostSessions, Sessions
from iosched.runtime.cuda.part_timer import PartTimer
from iosched.runtime.plan import PlanTask
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.unit_graph import Unit, join_units

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class CudaModel:
    """A model compiled under one schedule; thread-safe: concurrent runs are serialized, since they share GPU buffers.

    Attributes:
        cudnn_plans: names of the chosen cuDNN plans by key; with the same choices, the same kernels run again.
        inputs: the model's inputs by name.
        exchange: imports and exports arrays in GPU memory; None where that is not supported.
    """

    executor: CudaExecutor
    lowering: Lowering
    cudnn_plans: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    exchange: Exchange | None = None
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    def kernel_count(self) -> int:
        """Kernel launches of one run."""
        return self.lowering.kernel_count

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Runs the model once.

        Raises:
            UsageError: an input is missing, or has a wrong type or shape.
        """
        arrays = self._checked(inputs)
        with self._lock:
            found = self.executor.run(arrays)
        return {name.removesuffix(CALLER_SUFFIX): array for name, array in found.items()}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs on the GPU, without copying inputs."""
        arrays = self._checked(inputs)
        with self._lock:
            return self.executor.time(arrays, repeats)

    def run_on_device(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, DeviceArray]:
        """Runs the model on arrays in GPU memory, in place. The next run overwrites the outputs.

        Inputs are row-major DLPack arrays (PyTorch, CuPy, JAX, ...); arrays in host memory are copied to the GPU. The
        model is captured for each new set of addresses and keeps the captures of the last few, so reuse input arrays.
        An array whose address is not a multiple of 16 bytes is copied.

        Args:
            stream: handle of the CUDA stream that makes inputs and uses outputs
                (`torch.cuda.current_stream().cuda_stream`). If given, the call returns before the run is done. Host
                inputs, pinned ones too, are always copied first.

        Raises:
            UsageError: an input is missing, on another device, not contiguous, or has a wrong type or shape.
            ExecutionError: the GPU failed.
        """
        with self._lock:
            return self._in_place_runs.run(inputs, stream)

    @cached_property
    def _in_place_runs(self) -> InPlaceRuns:
        if self.exchange is None:
            raise UsageError("this device does not accept arrays in GPU memory: pass arrays in host memory to `run`")
        return InPlaceRuns(self.executor, self.exchange, self.inputs)

    def close(self) -> None:
        """Frees the model's GPU memory."""
        self.executor.close()

    def _checked(self, inputs: Arrays) -> dict[str, np.ndarray]:
        check_names(self.inputs, inputs)
        arrays = {name: checked(spec, np.asarray(inputs[name])) for name, spec in self.inputs.items()}
        return {view.buffer: arrays[view.buffer.removesuffix(CALLER_SUFFIX)] for view in self.executor.inputs}


class CudaBackend:
    """One model on one GPU.

    Attributes:
        units: the operators to schedule: the model's own, or units of several.
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
            lanes: streams to share with other models on the GPU.
            layout: of feature maps; by default from `choices`, else the preferred one.
            sessions: runs operators without a kernel; by default onnxruntime on the CPU.
            choices: stored choices of layout and fusion, and whether to time others; without it, nothing is fused.
            units: operators to schedule as one; see `join_units`.

        Raises:
            ValueError: the model is not `is_supported`.
            UsageError: `units` are invalid.
            DeviceLostError: the GPU is lost while kernels are timed.
        """
        self.units = join_units(model.graph, units)
        self.precision = precision
        self.driver = driver
        self._choose = choose
        self._lanes = [lanes or Lanes(driver)]  # one for each concurrent request
        self._sessions, self._exchange = sessions or HostSessions(driver), exchange
        self._part_timer = PartTimer(driver, choose, self._lanes[0], self._sessions)
        preferred = layout or preferred_layout(precision.name, driver.gpu)
        lowered = first = LoweredModel(model, precision, preferred, gpu=driver.gpu)
        self._layout = LayoutChoice(preferred)
        self._fused: Mapping[str, str] = {}
        self._crashes: tuple[str, ...] = ()
        if choices is not None and layout is None:
            self._layout = layout_by_choice(lowered, choices, partial(self._interleaved_us, choices))
            lowered = lowered if self.layout is preferred else lowered.in_layout(self.layout)
        if choices is not None:
            lowered, self._fused, keys = self._fused_by(choices, lowered)
            self._crashes = crash_notes(choices, [layout_key(first), *keys])
        self._lowered = lowered

    def _interleaved_us(self, choices: Choices, models: Sequence[LoweredModel]) -> Sequence[Sequence[float]]:
        key, fused = layout_key(models[0]), [self._fused_by(choices, lowered)[0] for lowered in models]
        return self._part_timer.interleaved_us(fused, lambda lowered: choices.trying(key, lowered.layout.value))

    def _fused_by(self, choices: Choices, lowered: LoweredModel) -> Fusion:
        return fused_by_choice(lowered, choices, self._part_timer.alone_us, self._part_timer.prepare)

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user about layout and cuDNN plans."""
        return *self._layout.notes, *self._crashes, *self._choose.notes

    @property
    def layout(self) -> Layout:
        """The memory layout of feature maps."""
        return self._layout.layout

    @staticmethod
    def supports(model: Model) -> bool:
        """Whether this runtime supports `model`; see `lowered_model.is_supported`."""
        return is_supported(model)

    @property
    def graph(self) -> ComputationGraph:
        """The graph to schedule."""
        return self.units.graph

    def lower(self, schedule: Schedule, *, barriers: bool = True, by_demand: bool = False) -> Lowering:
        """The execution plan of the model under `schedule`."""
        found = lower(self._lowered, self.units.expanded(schedule), barriers=barriers)
        return replace(found, by_demand=by_demand)

    def lower_fused(self, schedule: Schedule) -> Lowering:
        """The execution plan with depthwise and pointwise convolutions fused wherever possible."""
        return lower(fused_everywhere(self._lowered), self.units.expanded(schedule))

    def compile(self, schedule: Schedule, *, barriers: bool = True, by_demand: bool = False) -> CudaModel:
        """Compiles, captures and warms up the model under `schedule`.

        Args:
            by_demand: see `Lowering`; off until it is faster on a GPU.

        Raises:
            DeviceError: the GPU is out of memory, or cuDNN has no engine.
            ExecutionError: a kernel fails.
        """
        lowering = self.lower(schedule, barriers=barriers, by_demand=by_demand)
        self.driver.prepare(source_calls(lowering))
        return self._captured(schedule, lowering, self._lanes[0])

    def compile_in_flight(self, schedule: Schedule, count: int, *, barriers: bool = True) -> tuple[CudaModel, ...]:
        """`count` models that may run at the same time: each has its own streams, graph and arena; all share weights.

        Fewer are returned if the GPU's memory is too small; raises as `compile`.
        """
        found = [self.compile(schedule, barriers=barriers)]
        with suppress(DeviceError):
            while len(found) < count:
                if len(self._lanes) == len(found):
                    self._lanes.append(Lanes(self.driver))
                found.append(self._captured(schedule, found[0].lowering, self._lanes[len(found)], found[0].executor))
        return tuple(found)

    def _captured(
        self, schedule: Schedule, lowering: Lowering, lanes: Lanes, weights_of: CudaExecutor | None = None
    ) -> CudaModel:
        signatures = [self.signature(stage) for stage in schedule.stages]
        names = [self._choose.of_stage(signature) or FASTEST_ALONE for signature in signatures]
        executor = CudaExecutor(
            lowering, self.driver, self._choose, lanes, self._sessions, names=names, weights_of=weights_of
        )
        plans = {**self._fused, **_cudnn_plans_of(executor, dict(zip(signatures, names, strict=True)), names)}
        inputs = {spec.name: spec for spec in self.graph.inputs}
        return CudaModel(executor, lowering, plans, inputs, self._exchange)

    def compile_stage(self, stage: Stage, names: CudnnPlanNames = FASTEST_ALONE) -> CudaExecutor | None:
        """Compiles one stage with random inputs; None if the stage merges operators that cannot be merged.

        Args:
            names: cuDNN plans to use instead of the fastest alone.

        Raises:
            DeviceError: the GPU is out of memory, or cuDNN has no engine.
            ExecutionError: a kernel fails.
        """
        return self._part_timer.stage(self._lowered, self.units.expanded_stage(stage), names)

    def check_kernel(self, lowering: Lowering, task: PlanTask, *, rtol: float) -> Check:
        """Compares one task of a plan with its numpy reference; see `kernel_check.check_kernel`."""
        return check_kernel(lowering, task, self.driver, self._choose, self._lanes[0], rtol=rtol)

    def operator_key(self, name: str) -> str:
        """Key of an operator: equal for the same kernels, types, shapes and strides."""
        return self.units.key(name, self._lowered.operator_key, self._lowered.signature)

    def signature(self, stage: Stage) -> str:
        """Signature of a stage: equal for stages with the same latency."""
        return self._lowered.signature(self.units.expanded_stage(stage))

    def cudnn_plans_in(self, stage: Stage) -> CudnnPlanNames | None:
        """The cuDNN plans chosen for stages with this signature; None if none were tried."""
        return self._choose.of_stage(self.signature(stage))

    def keep_cudnn_plans(self, stage: Stage, names: CudnnPlanNames) -> CudnnPlanNames:
        """Stores cuDNN plans for stages with this signature; a choice that another process stored first is returned."""
        return self._choose.keep(self.signature(stage), names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


def _cudnn_plans_of(
    executor: CudaExecutor, chosen: Mapping[str, CudnnPlanNames], names: Sequence[CudnnPlanNames]
) -> dict[str, str]:
    found = {stage_key(signature): names_to_text(own) for signature, own in chosen.items() if own}
    found |= {plan.key: plan.name for stage, plan in executor.cudnn_plans if plan.key not in names[stage]}
    return dict(sorted(found.items()))
