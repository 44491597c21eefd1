"""Replaces the clock: whole models and stages have scripted latencies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from small_models import FLOAT, loaded, node, proto_of

from iosched.models.model import Model
from iosched.profiler.baselines import onnxruntime as plain
from iosched.profiler.baselines.openvino import OpenvinoBaseline
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.measuring.interleaved_models import Round, TakeRound
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.compare import Check
from iosched.runtime.openvino.library import missing
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import default_label

NEEDS_OPENVINO = pytest.mark.skipif(missing() is not None, reason=str(missing()))
LATENCIES_US = {"iosched": 10.0, "sequential": 20.0, "greedy": 30.0, "reference": 40.0}
"""Whole models of which the schedule found is the fastest, for `script_models`."""


OPENVINO_OPENED = (SimpleNamespace(time=lambda *_: (), close=lambda: None), Check(0.0, 0.0, True))
"""A model that OpenVINO has opened and that computes correctly, for `script_openvino`."""


def fire(batch: int = 1) -> Model:
    """A squeezing convolution, two that expand it, and their Concat, twice."""
    return loaded(fire_proto(batch), "fire")


def fire_proto(batch: int = 1) -> onnx.ModelProto:
    """The file of `fire`."""
    random = np.random.default_rng(0)
    nodes, weights = list[onnx.NodeProto](), dict[str, np.ndarray]()

    def convolution(source: str, result: str, channels: int, size: int) -> None:
        values = random.standard_normal((16, channels, size, size)).astype(np.float32) / (channels * size)
        weights[f"{result}_w"] = values
        nodes.append(node("Conv", [source, f"{result}_w"], [result], pads=[size // 2] * 4))

    for source, name, channels in (("x", "f", 16), ("fc", "g", 32)):
        convolution(source, f"{name}s", channels, 1)
        convolution(f"{name}s", f"{name}1", 16, 1)
        convolution(f"{name}s", f"{name}3", 16, 3)
        nodes.append(node("Concat", [f"{name}1", f"{name}3"], [f"{name}c"], axis=1))
    return proto_of(nodes, {"x": [batch, 16, 6, 6]}, ["gc"], weights, name="fire")


def model_with(nodes: list[onnx.NodeProto], elem_type: int = FLOAT) -> Model:
    return loaded(proto_of(nodes, {"x": (elem_type, [2, 3])}, ["y"], name="small"), "small")


def script_models(
    monkeypatch: pytest.MonkeyPatch, latencies_us: Mapping[str, float], runs: int = 7
) -> list[tuple[str, ...]]:
    """Whole models take `latencies_us` in each of `runs` runs; returns the names measured, call by call.

    OpenVINO is installed, and computes the same as onnxruntime, if it has a latency.
    """
    if "openvino" in latencies_us:
        script_openvino(monkeypatch, OPENVINO_OPENED)
    else:
        without_openvino(monkeypatch)
    calls: list[tuple[str, ...]] = []

    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        calls.append(tuple(runnables))
        return {name: summarize([latencies_us.get(name, 1000.0 + int(name == "1"))] * runs) for name in runnables}

    def rounds_of(candidates: Mapping[str, object], *_: object) -> TakeRound:
        calls.append(tuple(candidates))
        return lambda names: scripted_round({name: latencies_us.get(name, 1000.0) for name in names})

    def chosen(settings: Sequence[object]) -> int:
        calls.append(tuple(str(place) for place in range(len(settings))))
        return 0

    monkeypatch.setattr(cpu_open, "measure_interleaved", measured_in_turn)
    monkeypatch.setattr(cpu_open, "rounds_of", rounds_of)
    monkeypatch.setattr(plain, "fastest_setting", chosen)
    return calls


def scripted_round(
    latencies_us: Mapping[str, float], rested_us: Mapping[str, float] = {}, others: float = 0.0
) -> Round:
    """A round of these latencies, and after idle of `rested_us` or else the same."""
    rested = {name: rested_us.get(name, us) for name, us in latencies_us.items()}
    return Round(latencies_us, rested, Interference(others))


def script_openvino(monkeypatch: pytest.MonkeyPatch, tried: object) -> None:
    """OpenVINO is installed; `tried` is what opening a model leads to: the model and how far off it is, or an error."""
    monkeypatch.setattr(OpenvinoBaseline, "is_installed", staticmethod(lambda: True))
    monkeypatch.setattr(OpenvinoBaseline, "_tried", tried)
    monkeypatch.setattr(OpenvinoBaseline, "run_s", 0.0)


def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO is not installed, so that no candidate runs on it."""
    monkeypatch.setattr(OpenvinoBaseline, "is_installed", staticmethod(lambda: False))


def script_operators(monkeypatch: pytest.MonkeyPatch, session_us: float | None = None) -> list[Stage]:
    """Operators take 10 us each, one after another, but a session `session_us`; returns the stages measured."""
    found: list[Stage] = []

    def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        del cost, lanes, worse_than_us
        found.append(stage)
        is_session = stage.strategy is Strategy.SESSION
        us = session_us if is_session and session_us is not None else 10.0 * len(stage.operators)
        return summarize([us] * 7)

    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    return found


def script_stages(monkeypatch: pytest.MonkeyPatch, on_stage: Callable[[int], None] = lambda count: None) -> list[int]:
    """Stages take a latency made up from how often one was measured; returns one entry for each measured.

    By such latencies few long stages are the fastest, so there are no sessions.
    """
    measured: list[int] = []

    def made_up(run_batch: object, settings: object, **_: object) -> Measurement:
        on_stage(len(measured))
        measured.append(len(measured))
        value = 50 + int.from_bytes(hashlib.sha256(str(len(measured)).encode()).digest()[:2]) / 1000
        return summarize([value] * 7)

    monkeypatch.setattr(cpu_cost, "measure", made_up)
    return measured


def latencies_by_stage(
    monkeypatch: pytest.MonkeyPatch, disturb: Callable[[int], bool] = lambda count: False
) -> list[Stage]:
    """A stage has the same latency on every worker and in any order of measurements, and never below its bounds.

    Returns the stages measured, one entry for each measurement; other processes interfere with those whose number
    `disturb` picks.
    """
    measured: list[Stage] = []

    def made_up(cost: Any, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        others = ("other processes used 50% of the cores",) if disturb(len(measured)) else ()
        measured.append(stage)
        return disturbance.disturbed(summarize([stage_us(cost, stage, lanes)] * 24), others)

    monkeypatch.setattr(cpu_cost.CpuStageCost, "_timed", made_up)
    return measured


def stage_us(cost: Any, stage: Stage, lanes: int) -> float:
    """Single operators share all lanes badly; of several groups, each has a lane, the longest first."""
    groups_us = sorted((sum(_work_us(cost, name) for name in group) for group in stage.groups), reverse=True)
    if stage.strategy is Strategy.MERGE:
        return 5.0 + 0.55 * sum(groups_us)
    if len(groups_us) == 1 or lanes == 1:
        return sum(groups_us) * (1.0 if lanes == 1 else 1.2 / lanes)
    busy_us = [0.0] * lanes
    for us in groups_us:
        busy_us[busy_us.index(min(busy_us))] += us
    return max(busy_us)


def _work_us(cost: Any, name: str) -> float:
    """The time of an operator on one lane, by its computation and independent of what onnxruntime reads first."""
    graph = cost.backend.graph
    label = default_label(graph)(graph.by_name[name])
    return 50 + int.from_bytes(hashlib.sha256(label.encode()).digest()[:2]) / 1000


class Asked:
    """A user who interrupts a job when a test says so, and gives the answer of the test."""

    can_come = True

    def __init__(self, answer: bool) -> None:
        self.came = self.accepted = False
        self.times_asked = 0
        self._answer = answer

    @contextmanager
    def holding(self) -> Iterator[None]:
        yield

    def ask(self) -> None:
        self.times_asked += 1
        self.came, self.accepted = False, self._answer
        if not self._answer:
            raise KeyboardInterrupt
