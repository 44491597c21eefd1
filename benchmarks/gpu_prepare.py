"""What a case on a GPU needs that no GPU computes, done while another case has the GPU."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import numpy as np
from gpu_cases import NetworkCase
from testbed import gpu_spec, zoo_model

from iosched import IoschedError, Model, Schedule, search
from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.gpus import GpuSpec, spec_of
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime.cuda.cudnn.cudnn_graph import load_cudnn
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference


@dataclass(frozen=True, eq=False)
class Peer:
    """A network that is ready to run on inputs that lie on the GPU.

    Attributes:
        time: runs it n times in a row, and tells the microseconds of each; the first finds the GPU idle.
        outputs: what it computes, by the names of the model's outputs; None where that cannot be read back.
    """

    time: Callable[[int], Sequence[float]]
    outputs: Callable[[], Mapping[str, np.ndarray]] | None


PAPER = "h100"
"""The GPU whose specification stands in where that of the attached one is not known."""


@dataclass(frozen=True)
class Prepared:
    """What a case needs that no GPU computes, and the seconds that each step of the case took."""

    model: Model
    inputs: Arrays
    expected: Mapping[str, np.ndarray]
    paper: Paper
    seconds: dict[str, float]


@dataclass(frozen=True)
class Paper:
    """The schedule by the analytic model of a GPU, for which nothing is measured."""

    spec: GpuSpec
    schedule: Schedule
    seconds: float


def prepare(case: NetworkCase, expected: str) -> Prepared:
    """Does all that needs no GPU: imports, the network, its outputs by onnxruntime, the schedule on paper.

    Args:
        expected: the name that the GPU will have; empty if that is not known yet.
    """
    seconds: dict[str, float] = {}
    with timed(seconds, "import"):
        _import_early(case)
    with timed(seconds, "build"):
        model = zoo_model(case.network, case.batch)
    inputs = random_inputs(model.graph.inputs, seed=case.batch)
    with timed(seconds, "check"), Reference(model) as reference:
        outputs = reference.run(inputs)
    with timed(seconds, "paper"):
        paper = on_paper(model, spec_of(expected) or gpu_spec(PAPER), case.precision)
    return Prepared(model, inputs, outputs, paper, seconds)


def _import_early(case: NetworkCase) -> None:
    """Imports what takes seconds, in the order in which it would be imported anyway; what is missing is told later."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory
    with suppress(IoschedError, ImportError):
        load_cudnn()
    if any(way.startswith("torch") for way in case.ways):
        with suppress(ImportError):
            import torch  # noqa: F401


def on_paper(model: Model, spec: GpuSpec, precision: str) -> Paper:
    """The schedule that the analytic model of a GPU finds best."""
    started = time.monotonic()
    opened = SimulatedGpu(spec).open(model, OpenSettings(precision=precision))
    schedule = search(opened.graph, opened.cost, effort=opened.effort).schedule
    return Paper(spec, schedule, round(time.monotonic() - started, 2))


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Adds what the step takes to the seconds, by its name."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = round(seconds.get(step, 0.0) + time.monotonic() - began, 2)


@contextmanager
def alone(lock: IO[bytes]) -> Iterator[None]:
    """Holds a lock: nothing is compared while the process of the next case uses the host's cores to prepare it."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
