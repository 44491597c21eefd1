"""The share of the lanes' time in which they wait while a stage runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire

from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.throughput import idle_share, idle_streams
from iosched.scheduler.baselines import greedy
from iosched.scheduler.schedule import Stage, Strategy

ALONE_US = {("a",): 100.0, ("b", "c"): 60.0, ("d",): 20.0}


def latency_us(stage: Stage) -> float | None:
    """Groups alone take what the table says; side by side, the longest of them and 5 us a group."""
    known = [ALONE_US.get(group) for group in stage.groups]
    if None in known:
        return None
    return max(map(float, known)) + (5.0 * len(known) if len(known) > 1 else 0.0)  # type: ignore[arg-type]


def concurrent(*groups: tuple[str, ...]) -> Stage:
    return Stage(Strategy.CONCURRENT, groups)


def test_lanes_are_idle_when_they_are_not_busy() -> None:
    assert idle_share(100.0, [100.0, 60.0], 2) == pytest.approx(0.2)
    assert idle_share(100.0, [30.0, 70.0, 20.0], 4) == pytest.approx(0.7)
    assert idle_share(50.0, [100.0], 2) == 0.0


def test_it_is_not_known_where_a_number_is_missing() -> None:
    assert idle_share(None, [1.0], 2) is None
    assert idle_share(1.0, [1.0, None], 2) is None
    assert idle_share(0.0, [0.0], 2) is None
    assert idle_share(math.inf, [1.0], 2) is None


@given(st.floats(1e-3, 1e6), st.lists(st.floats(0, 1e7), max_size=8), st.integers(1, 64))
def test_it_lies_between_0_and_1_and_falls_with_what_lanes_do(latency: float, busy: list[float], lanes: int) -> None:
    found = idle_share(latency, busy, lanes)
    more = idle_share(latency, [*busy, latency], lanes)
    assert found is not None
    assert more is not None
    assert 0 <= more <= found <= 1
    assert idle_share(latency, [latency] * lanes, lanes) == pytest.approx(0.0)


def test_a_stream_waits_for_the_longest_group_of_its_stage() -> None:
    """3 streams of 115 us, of which 100 + 60 + 20 are busy."""
    assert idle_streams(concurrent(*ALONE_US), latency_us) == pytest.approx(1 - 180 / 345)
    assert idle_streams(concurrent(("b", "c")), latency_us) == 0.0
    assert idle_streams(concurrent(("a",), ("x",)), latency_us) is None
    for strategy in (Strategy.MERGE, Strategy.SESSION):
        assert idle_streams(Stage(strategy, (("a",), ("d",))), latency_us) is None


def test_streams_of_a_gpu_that_is_not_attached_are_computed() -> None:
    gpu = gpu_named("v100")
    assert gpu is not None
    opened = SimulatedGpu(gpu).open(fire(), OpenSettings())
    stages = list(greedy(fire().graph).stages)
    for stage in stages:
        alone_us = [opened.cost.stage_latency_us(concurrent(group)) for group in stage.groups]
        busy = sum(alone_us) / len(alone_us) / opened.cost.stage_latency_us(stage)
        assert opened.details.idle_share(stage) == pytest.approx(max(1 - busy, 0))
    assert any(len(stage.groups) > 1 for stage in stages)
