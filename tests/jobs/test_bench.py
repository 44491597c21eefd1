"""Alternatives are measured interleaved; those that cannot be opened are reported with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from scripted import fire, model_with, script_stages
from shipped import document

from iosched.jobs.bench import bench
from iosched.models.errors import UsageError
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.strategies import COMPARED


def test_rows_have_every_number_and_missing_baselines_are_reported(tmp_path: Path) -> None:
    names = ["iosched", *COMPARED, "session", "onnxruntime", "onnxruntime-parallel", "torch", "onnxruntime-cuda"]
    found = bench(fire(), document(fire()), names=names, threads=2, rounds=6, profile_db=tmp_path / "p.db")
    measured = [row.name for row in found.rows]
    assert measured == ["sequential", "iosched", *COMPARED[1:], "session", "onnxruntime", "onnxruntime-parallel"]
    assert [name for name, _ in found.missing] == ["torch", "onnxruntime-cuda"]
    assert all(reason for _, reason in found.missing)
    assert set(found.samples_us) == set(measured)
    assert found.device
    for row in found.rows:
        assert row.samples == len(found.samples_us[row.name]) == 6
        # The median is over rounds, which have unequal numbers of runs: it may lie outside quantiles of single runs.
        assert 0 < row.min_us <= row.p10_us <= row.p90_us <= max(found.runs_us[row.name])
        assert row.min_us <= row.median_us <= max(found.runs_us[row.name])
        assert row.runs == len(found.runs_us[row.name]) >= 6
        assert (row.p99_us, row.p99_low_us, row.p99_high_us) == (None, None, None)
        assert row.speedup_low is not None
        assert row.speedup is not None
        assert row.speedup_high is not None
        assert 0 < row.speedup_low <= row.speedup <= row.speedup_high
    assert found.rows[0].speedup == 1.0
    (note,) = found.notes
    assert "p99: use --rounds" in note


@pytest.mark.parametrize("count", [0, 2])
def test_rows_are_measured_under_the_given_background_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    running: list[int] = []

    @contextmanager
    def started(asked: int) -> Iterator[None]:
        running.append(asked)
        yield
        running.clear()

    def measured_in_turn(runnables: Mapping[str, object], budget: Budget, *_: object) -> dict[str, Measurement]:
        assert (running, budget.is_loaded) == ([count], count > 0)
        return {name: summarize([10.0] * 7) for name in runnables}

    monkeypatch.setattr("iosched.jobs.bench.busy_processes", started)
    monkeypatch.setattr(cpu_open, "measure_interleaved", measured_in_turn)
    found = bench(fire(), None, names=["greedy"], threads=2, profile_db=tmp_path / "p.db", background_load=count)
    assert (found.background_load, len(found.rows), running) == (count, 2, [])


def test_p99_of_single_runs_is_reported_with_its_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred rounds of two runs; one run in fifty takes ten times as long, which no median of a round shows."""
    runs_us = tuple(100.0 if index % 50 == 7 else 10.0 for index in range(400))

    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        return {name: replace(summarize([10.0] * 200), runs_us=runs_us) for name in runnables}

    monkeypatch.setattr(cpu_open, "measure_interleaved", measured_in_turn)
    found = bench(fire(), None, names=["greedy"], threads=2, profile_db=tmp_path / "p.db")
    (row, _) = found.rows
    assert (row.runs, row.samples, row.median_us, row.p90_us) == (400, 200, 10.0, 10.0)
    assert (row.p99_us, row.p99_low_us, row.p99_high_us) == (100.0, 10.0, 100.0)
    assert (found.notes, found.runs_us["greedy"]) == ((), runs_us)


def test_concurrent_requests_are_compared_by_throughput_not_by_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests at a time, each of which takes half as long again as one run alone."""
    us = {"sequential": 10.0, "onnxruntime-sessions": 15.0}
    monkeypatch.setattr(
        cpu_open, "measure_interleaved", lambda candidates, *_: {name: summarize([us[name]] * 8) for name in candidates}
    )
    found = bench(fire(), None, names=["onnxruntime-sessions"], threads=2, profile_db=tmp_path / "p.db")
    alone, both = found.rows
    assert (alone.in_flight, both.in_flight) == (1, 2)
    assert (alone.images_per_s, both.images_per_s) == (pytest.approx(1e5), pytest.approx(2e6 / 15))
    assert (both.median_us, both.speedup) == (15.0, pytest.approx(20 / 15))


@pytest.mark.parametrize(
    ("n_runs", "words"),
    [
        (
            20,
            "20 runs of sequential are too few for a reliable p90 or any p99: use --rounds 184.",
        ),
        (100, "100 runs of sequential are too few for p99: use --rounds 37."),
    ],
)
def test_quantiles_with_too_few_runs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_runs: int, words: str
) -> None:
    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        of_all = dict.fromkeys(runnables, 400) | {"sequential": n_runs}
        return {name: replace(summarize([10.0] * 10), runs_us=(10.0,) * count) for name, count in of_all.items()}

    monkeypatch.setattr(cpu_open, "measure_interleaved", measured_in_turn)
    assert bench(fire(), None, names=["greedy"], threads=2, profile_db=tmp_path / "p.db").notes == (words,)


def test_too_few_rounds_give_no_speedup(tmp_path: Path) -> None:
    found = bench(fire(), None, names=["greedy"], threads=2, rounds=5, profile_db=tmp_path / "p.db")
    assert {(row.speedup, row.speedup_low, row.speedup_high) for row in found.rows} == {(None, None, None)}
    assert "Fewer than 6 rounds" in found.notes[0]


def test_without_names_all_baselines_but_the_opt_in_ones_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        return {name: summarize([10.0] * 7) for name in runnables}

    monkeypatch.setattr(cpu_open, "measure_interleaved", measured_in_turn)
    script_stages(monkeypatch)
    found = bench(fire(), None, threads=2, profile_db=tmp_path / "p.db")
    names = {*(row.name for row in found.rows), *(name for name, _ in found.missing)}
    assert {"iosched", "sequential", "both", "onnxruntime"} <= names
    assert not names & {"dos", "torch-compile"}


def test_speedup_is_against_sequential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        slow = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0)
        return {name: summarize([(10.0 if name == "greedy" else 30.0) * x for x in slow]) for name in runnables}

    monkeypatch.setattr(cpu_open, "measure_interleaved", measured_in_turn)
    found = bench(fire(), None, names=["greedy"], threads=2, profile_db=tmp_path / "p.db")
    assert {row.name: row.speedup for row in found.rows} == {"sequential": 1.0, "greedy": 3.0}
    assert {(row.speedup_low, row.speedup_high) for row in found.rows} == {(1.0, 1.0), (3.0, 3.0)}


def test_searches_use_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    counts = []
    for _ in range(2):
        bench(fire(), None, names=["both"], threads=2, rounds=1, profile_db=tmp_path / "p.db")
        counts.append(len(measured))
    assert counts[0] == counts[1] > 0


def test_without_a_schedule_iosched_is_missing(tmp_path: Path) -> None:
    found = bench(fire(), None, names=["iosched"], threads=2, rounds=1, profile_db=tmp_path / "p.db")
    assert [name for name, _ in found.missing] == ["iosched"]
    assert [row.name for row in found.rows] == ["sequential"]


def test_unknown_baselines_and_unschedulable_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensorrt"):
        bench(fire(), None, names=["tensorrt"], profile_db=tmp_path / "p.db")
    text = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.STRING)
    with pytest.raises(UsageError, match="nothing to schedule"):
        bench(text, None, names=["greedy"], profile_db=tmp_path / "p.db")
