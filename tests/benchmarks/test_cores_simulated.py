"""The simulation of more cores: one and two cores are as measured, and divided work follows the lowering."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from scripted import fire
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Division, Stage, Strategy

FOLDER = Path(__file__).parents[2] / "benchmarks"
Lanes = tuple[tuple[int, ...], ...]


@pytest.fixture(scope="module")
def cores() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield import_module("cores_model")


@given(st.floats(1, 1e4), st.floats(0.3, 1.2), st.lists(st.floats(0.05, 0.5), max_size=14))
def test_one_core_and_two_are_as_measured(cores: ModuleType, one_us: float, ratio: float, more: list[float]) -> None:
    parts = [1.0, 0.5, *sorted(more, reverse=True)]
    unit = cores.Unit(one_us, one_us * ratio, 1)
    found = cores.latencies_us(unit, parts)
    assert found[:2] == pytest.approx((unit.one_us, unit.two_us))
    assert len(found) == len(parts)
    assert cores.latencies_us(unit, [1.0]) == (one_us,)


def test_undivided_work_takes_equally_long_on_any_number_of_cores(cores: ModuleType) -> None:
    assert cores.latencies_us(cores.Unit(10.0, 10.4, 1), [1.0] * 4) == (10.0,) * 4


def test_parts_match_the_lowering(cores: ModuleType) -> None:
    """Three convolutions in a row, whose results are one block of 16 channels (or two of 8), 64 and 48 channels."""
    sizes = {"a": 16, "b": 64, "c": 48}
    nodes, weights, channels, source = [], {}, 16, "x"
    for name, size in sizes.items():
        weights[f"w{name}"] = weight(size, channels, 3, 3, seed=size)
        nodes.append(helper.make_node("Conv", [source, f"w{name}"], [name], pads=[1] * 4))
        source, channels = name, size
    model = loaded(proto_of(nodes, {"x": (1, 16, 32, 32)}, ["c"], weights))
    with CpuBackend(model, lanes=4) as backend:
        parts = cores.largest_parts(backend, 4)
        assert {name: own[0] for name, own in parts.items()} == dict.fromkeys(parts, 1.0)
        assert parts["b"][1::2] == pytest.approx((1 / 2, 1 / 4))
        assert parts["c"][2] < parts["c"][1] < 1.0
        assert all(own[0] >= own[1] >= own[3] > 0 for own in parts.values())
        assert cores.unit_nbytes(backend, "b") >= 4 * (64 * 16 * 9 + (16 + 64) * 32 * 32)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=3), st.integers(2, 4))
def test_a_stage_takes_as_long_as_its_busiest_core(cores: ModuleType, work: list[tuple[int, int]], lanes: int) -> None:
    """Matches the enumeration for a given division, and is never longer than the guess if several are tried."""
    names = [str(index) for index in range(len(work))]
    counts = range(1, lanes + 1)
    us = {n: tuple(fixed + part / k for k in counts) for n, (fixed, part) in zip(names, work, strict=True)}
    stage = Stage(Strategy.CONCURRENT, tuple((name,) for name in names))

    def makespan(groups: Lanes) -> float:
        return max(
            sum(us[name][len(own) - 1] for name, own in zip(names, groups, strict=True) if lane in own)
            for lane in range(lanes)
        )

    ranges = [tuple(range(start, stop)) for start in range(lanes) for stop in range(start + 1, lanes + 1)]
    for guess in product(ranges, repeat=len(names)):
        given_us = lanes, us, dict.fromkeys(names, 80), str, lambda _, own=guess: own
        costs = [
            cores.SimulatedCost(*given_us, chooses, speed)
            for chooses, speed in ((False, float("inf")), (True, float("inf")), (False, 0.5))
        ]
        plain, chosen, capped = (cost.stage_latency_us(stage) for cost in costs)
        assert plain == pytest.approx(makespan(guess))
        assert chosen <= plain + 1e-9
        assert capped == pytest.approx(max(plain, len(names) * 80 / 0.5))
        division = costs[1].divided(stage).division
        assert isinstance(division, Division)
        assert makespan(division.groups) == pytest.approx(chosen)


@pytest.mark.slow
def test_known_measurements_are_simulated_again(
    script: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_network(name: str) -> Model:
        assert name == "small"
        return fire()

    simulation = script("cores_simulated")
    monkeypatch.setattr(simulation, "zoo_model", no_network)
    monkeypatch.setattr(simulation, "CORES", (1, 2, 4))
    monkeypatch.setattr(simulation, "ROUNDS", 2)
    words = ["--networks", "small", "-o", str(tmp_path / "raw.json")]
    simulation.main(words)
    first = json.loads((tmp_path / "raw.json").read_text())
    for measure in ("measure_units", "measure_networks"):
        monkeypatch.setattr(simulation, measure, None)
    simulation.main(words)
    second = json.loads((tmp_path / "raw.json").read_text())
    printed = capsys.readouterr().out
    assert printed.count("SIMULATED, not measured:") == 2
    rows = second["networks"]["small"]["simulated"]
    assert [row["cores"] for row in rows] == [1, 2, 4]
    units = second["networks"]["small"]["units"].values()
    assert rows[0]["us"]["sequential"] == pytest.approx(sum(unit[0] for unit in units))
    least, most = (sum(choose(unit[:2]) for unit in units) for choose in (min, max))
    assert least - 1e-6 <= rows[1]["us"]["sequential"] <= most + 1e-6  # undivided work is as on one core
    for row in rows:
        assert row["us"]["found"] <= row["us"]["sequential"] + 1e-6
        assert row["tried"] >= row["tried_by_guess"] > 0
        assert all(row["capped_us"][name] >= us - 1e-6 for name, us in row["us"].items())
    assert first["networks"]["small"]["samples_us"] == second["networks"]["small"]["samples_us"]
