"""A model whose batch, or whose requests, are divided over the cores: teams of lanes that each take some images."""

from __future__ import annotations

from typing import Any

import numpy as np

from iosched.models.batch_independence import batched_inputs, with_batch_size
from iosched.models.model import Model
from iosched.runtime.cpu.backend import Arrays, CpuBackend, PlanExecutor
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.lower import Lowering
from iosched.runtime.cpu.native import NativeExecutor, NativeRuntime, supports
from iosched.runtime.cpu.python_executor import PythonExecutor, PythonRuntime
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.requests import Requests
from iosched.runtime.teams import TeamPlan, in_teams
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams


class TeamBackends:
    """The model prepared for as many images as teams take at once, each when it is first asked for.

    Attributes:
        model: bound to the whole batch.
        lanes: of a team.
    """

    def __init__(self, model: Model, lanes: int) -> None:
        self.model, self.lanes = model, lanes
        self._known: dict[int, CpuBackend] = {}

    def of(self, images: int) -> CpuBackend:
        """The model for so many images.

        Raises:
            UsageError: the model does not compute the images of its batch apart; see `with_batch_size`.
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
        """
        if images not in self._known:
            self._known[images] = CpuBackend(with_batch_size(self.model, images), lanes=self.lanes)
        return self._known[images]

    def close(self) -> None:
        """Frees what was prepared."""
        for backend in self._known.values():
            backend.close()


def lower_in_teams(backends: TeamBackends, schedule: Schedule, teams: Teams) -> Lowering:
    """The plan of one run of the model, in which each team runs `schedule` for its images, and its kernels.

    Raises:
        UsageError: the model does not compute the images of its batch apart.
        HazardError: the plan does not pass the check, which is a fault of the lowering.
    """
    model = backends.model
    shares = [pieces for pieces in teams.pieces(model.batch_size) if pieces]
    counts = dict.fromkeys(piece.count for pieces in shares for piece in pieces)
    lowered = {count: backends.of(count).lower(schedule) for count in counts}
    plans: dict[int, TeamPlan] = {}
    kernels: tuple[Any, ...] = ()
    for count, each in lowered.items():
        plans[count] = TeamPlan(each.plan, len(kernels))
        kernels += each.kernels
    fewer = next((count for count in counts if count != model.batch_size), None)
    images = () if fewer is None else batched_inputs(model, with_batch_size(model, fewer))
    return Lowering(CheckedPlan(in_teams(plans, shares, frozenset(images))), kernels)


class DividedModel:
    """A whole model whose batch is divided among teams; one run at a time."""

    def __init__(self, executor: PlanExecutor, lowering: Lowering, kernels: KernelGraph) -> None:
        """Takes over an executor of the plan.

        Args:
            executor: of the plan of `lowering`.
            lowering: of one run, see `lower_in_teams`.
            kernels: of any of its pieces.
        """
        self._executor = executor
        self._forwarded = tuple(name for name in kernels.outputs if name in kernels.inputs)
        self._constant = {name: kernels.weights[name] for name in kernels.outputs if name in kernels.weights}
        self._given = frozenset(buffer.name for buffer in lowering.plan.buffers if buffer.is_given)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run of the model."""
        outputs = self._executor.run(self._used(inputs))
        given = {**self._constant, **{name: inputs[name] for name in self._forwarded}}
        return {**outputs, **{name: np.array(array) for name, array in given.items()}}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs in a row."""
        return self._executor.time(self._used(inputs), repeats)

    def close(self) -> None:
        """Frees sessions, threads and buffers."""
        self._executor.close()

    def _used(self, inputs: Arrays) -> Arrays:
        return {name: np.asarray(array, order="C") for name, array in inputs.items() if name in self._given}


def open_divided(backends: TeamBackends, schedule: Schedule, teams: Teams, cpus: LaneCpus) -> Requests:
    """The model ready to run, divided.

    Args:
        backends: of the model, with the lanes of one team. Whoever made them closes them, after what this returns.
        schedule: what a team runs, in operators of the model.
        teams: how the cores share the work.
        cpus: the processors to use, given back by whoever took them.

    Raises:
        UsageError: the model does not compute the images of its batch apart.
        ExecutionError: with onnxruntime's words, if it refuses a kernel.
    """
    lowering = lower_in_teams(backends, schedule, teams)
    kernels = backends.of(teams.pieces(backends.model.batch_size)[-1][0].count).kernels
    executors = _executors(lowering, teams.requests, cpus)
    return Requests([DividedModel(executor, lowering, kernels) for executor in executors])


def _executors(lowering: Lowering, requests: int, cpus: LaneCpus) -> tuple[PlanExecutor, ...]:
    """An executor for each request that goes on at the same time, on cores of its own."""
    lanes = len(lowering.plan.lanes)
    chosen = cpus.of(lanes * requests)
    parts = [chosen[lanes * number : lanes * (number + 1)] for number in range(requests)]
    if not (available() and supports(lowering.plan)):
        runtime = PythonRuntime()
        return tuple(PythonExecutor(lowering.checked, lowering.kernels, runtime=runtime, cpus=own) for own in parts)
    runtimes = [NativeRuntime()]
    runtimes += [NativeRuntime(runtimes[0]) for _ in parts[1:]]
    return tuple(
        NativeExecutor(lowering.checked, lowering.kernels, runtime=own_runtime, cpus=own)
        for own_runtime, own in zip(runtimes, parts, strict=True)
    )
