"""`serving_load.py`: its rates, its simulation against a queue by definition, and its tables."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import chains

from iosched.jobs.load_test import load_test as job
from iosched.jobs.load_test.arrivals import Arrival
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.load_test import LoadResult, LoadSettings
from iosched.jobs.load_test.sender import Answer
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy


@pytest.fixture(scope="module")
def serving_load() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield import_module("serving_load")


def by_definition(times_s: Sequence[float], servers: int, run_s: float) -> list[float]:
    """Latencies of a queue with several servers, in the order of arrival (J. Kiefer, J. Wolfowitz, 1955)."""
    free_s, found = [0.0] * servers, []
    for at_s in times_s:
        begins_s = max(at_s, heapq.heappop(free_s))
        heapq.heappush(free_s, begins_s + run_s)
        found.append(begins_s + run_s - at_s)
    return found


@given(st.lists(st.floats(0, 20), max_size=40), st.integers(1, 4), st.floats(0.1, 3))
def test_requests_on_one_core_each_wait_as_in_a_queue(
    serving_load: ModuleType, times_s: list[float], cores: int, run_s: float
) -> None:
    times_s.sort()
    policy = ServingPolicy({"a": ModelPolicy(((math.inf, 1),), most_waiting=1000)})
    arrivals = [Arrival(each, "a") for each in times_s]
    found = serving_load.simulate(policy, cores, arrivals, {"a": {1: run_s * 1e6}})
    assert sorted(found["a"]) == pytest.approx(sorted(each * 1e6 for each in by_definition(times_s, cores, run_s)))


def test_refused_requests_have_infinite_latency(serving_load: ModuleType) -> None:
    policy = ServingPolicy({"a": ModelPolicy(((math.inf, 1),), most_waiting=1)})
    arrivals = [Arrival(0.0, "a")] * 3
    assert serving_load.simulate(policy, 1, arrivals, {"a": {1: 1e6}})["a"] == pytest.approx([1e6, 2e6, math.inf])


def test_latencies_on_more_cores_follow_amdahls_law(serving_load: ModuleType) -> None:
    halved = {"1": [100.0] * 3, "2": [50.0, 50.0, 60.0]}
    assert serving_load.amdahl_us(halved, 8) == pytest.approx(12.5)
    assert serving_load.amdahl_us({"1": [100.0], "2": [75.0]}, 4) == pytest.approx(62.5)
    assert serving_load.amdahl_us({"1": [100.0], "2": [120.0]}, 4) == 100.0
    assert serving_load.amdahl_us({"1": [100.0]}, 4) == 100.0


def test_each_model_gets_an_equal_share_of_the_load(serving_load: ModuleType) -> None:
    lone_us = {"a": 10e3, "b": 40e3}
    rates = serving_load.rates_of(lone_us, 0.8)
    assert rates == pytest.approx({"a": 40.0, "b": 10.0})
    assert sum(rates[name] * lone_us[name] / 1e6 for name in rates) == pytest.approx(0.8)


@pytest.fixture
def queues(serving_load: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[LoadSettings]:
    """Replaces load tests: streams carry 1.5 times the load of a model alone, sessions 1.0, all others nothing."""
    asked: list[LoadSettings] = []
    most = {"openvino-streams": 1.5, "onnxruntime-sessions": 1.0, "iosched": 2.0}

    def fake(models: Any, settings: LoadSettings) -> LoadResult:
        asked.append(settings)
        load = sum(rate * 0.01 for rate in settings.rates.values())
        rows = tuple(
            LoadRow(
                name,
                model,
                rate,
                5e4,
                2.0,
                (Answer(model, 1e4 if load <= most.get(name, 0.0) else math.inf, 0.0),) * 40,
            )
            for name in settings.names or job.OPENERS
            for model, rate in settings.rates.items()
        )
        return LoadResult(rows, "Test CPU", 2, settings.seed, dict.fromkeys(models, 1e4), {})

    monkeypatch.setattr(serving_load, "load_test", fake)
    monkeypatch.setattr(serving_load, "cpu_count", lambda: 2)
    monkeypatch.setattr(serving_load, "by_cores_us", lambda models: {name: {1: [1e4], 2: [6e3]} for name in models})
    monkeypatch.setattr(serving_load, "served_alone", lambda model, threads: type("Alone", (), {"lone_us": 1e4}))
    return asked


def test_the_capacity_is_that_of_the_best_baseline(serving_load: ModuleType, queues: list[LoadSettings]) -> None:
    found = serving_load.capacity(chains(2), 400)
    assert 1.5 / 1.15 < found["load"] <= 1.5
    assert all("iosched" not in each.names for each in queues)
    assert all(each.duration_s * min(each.rates.values()) >= 400 for each in queues if each.duration_s)


def test_points_resume_and_are_pooled_over_seeds(
    serving_load: ModuleType, queues: list[LoadSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_load, "LEAST_REQUESTS", 80)
    found: dict[str, Any] = {"sets": {}, "points": [], "simulated": {}}
    numbers = {"seeds": 2, "first_seed": 1, "requests": 80, "capacity_requests": 40}
    options = type("Options", (), {**numbers, "baselines": (), "output": tmp_path / "r.json"})
    options.shares = serving_load.SHARES  # type: ignore[attr-defined]
    options.command = ["python"]  # type: ignore[attr-defined]
    serving_load.measured("01", chains(2), found, options)
    assert [(each["seed"], each["share"]) for each in found["points"]] == [
        (seed, share) for seed in (1, 2) for share in serving_load.SHARES
    ]
    tests = len(queues)
    found["points"] = found["points"][:-1]
    serving_load.measured("01", chains(2), serving_load.resumed_results(tmp_path / "r.json"), options)
    assert len(queues) == tests
    serving_load.measured("01", chains(2), found, options)
    assert len(queues) == tests + 1
    options.first_seed, options.shares = 11, (0.95,)  # type: ignore[attr-defined]
    options.baselines = ("onnxruntime",)  # type: ignore[attr-defined]
    serving_load.measured("01", chains(2), found, options)
    assert [(each["seed"], [*each["latencies_us"]]) for each in found["points"][-2:]] == [
        (seed, ["iosched", "onnxruntime"]) for seed in (11, 12)
    ]
    del found["points"][-2:]
    headers, rows = serving_load.table(found["points"], "01")
    assert headers[-1] == "in time"
    best = next(row for row in rows if row[:3] == ("95%", "a", "iosched"))
    assert best[3:5] == (80, "10.0 ms (10.0 ms to 10.0 ms)")
    worst = next(row for row in rows if row[:3] == ("95%", "a", "onnxruntime"))
    assert worst[4:] == ("no answer (no answer to no answer)", worst[4], "unknown", "0.0%")


def test_ratios_are_to_the_best_baseline_of_each_model(serving_load: ModuleType) -> None:
    def point(seed: int, ours_us: int, **more: Any) -> dict[str, Any]:
        latencies_us = {"iosched": ours_us, "onnxruntime": 400, "openvino-streams": 200, "onnxruntime-divided": None}
        return {
            "set": "01", "share": 0.7, "seed": seed, "rates": {"a": 5.0}, "deadlines_us": {"a": 250.0},
            "latencies_us": {name: {"a": [us] * 10} for name, us in latencies_us.items()}, "seconds": 9.0, **more,
        }  # fmt: skip

    points = [point(1, 100), point(2, 180), point(3, 300), point(4, 1, set="2"), point(5, 1, seconds=3.0)]
    _, rows = serving_load.ratio_table(points, "01")
    found = ("70%", "a", 30, "0.2 ms", "openvino-streams", "0.2 ms", 3, "0.90 (0.50 to 1.50)", "0.667")
    assert rows == [found], "not of another set, nor of a seed with fewer requests"
    assert serving_load.ratio_table(points, "01", "0.7")[1] == rows
    counts = {name: count for _, _, name, count, *_ in serving_load.table(points, "01")[1]}
    assert counts["iosched"] == 40, "of all seeds"


def test_simulated_policies_have_a_row_for_each_model_and_load(
    serving_load: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_load, "SIMULATED_REQUESTS", 900)
    by_cores = {name: {"1": [1e4], "2": [6e3]} for name in "ab"}
    rows = serving_load.simulated(chains(2), {"by_cores_us": by_cores})
    assert len(rows) == len(serving_load.CORES) * len(serving_load.SHARES) * 4 * 2
    alone = {each["policy"]: each["p50_us"] for each in rows if (each["cores"], each["share"]) == (16, 0.4)}
    assert alone["one core"] == pytest.approx(1e4)
    assert len(serving_load.simulated_table({"01": rows}, "01")[1]) == len(rows)
    assert len(serving_load.simulated_table({"01": rows}, "01", "0.7 0.95")[1]) == len(rows) * 2 // 3
