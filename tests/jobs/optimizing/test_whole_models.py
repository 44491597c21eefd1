"""The latency of a whole model is stored with the sums of its stages and of its operators."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import LATENCIES_US, Asked, fire, script_models, script_stages, scripted_round

from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.interleaved_models import TakeRound
from iosched.profiler.store.database import ProfileDatabase, export_lines, import_lines
from iosched.profiler.store.tables import WholeRow


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    script_stages(monkeypatch)
    return OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db")


def kept(settings: OptimizeSettings) -> list[WholeRow]:
    with ProfileDatabase(settings.profile_db) as database:
        return [row for row in database.rows() if isinstance(row, WholeRow)]


def test_a_row_has_the_shipped_latency_and_the_sums_of_stages(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(monkeypatch, {**LATENCIES_US, "reference": 5.0})
    result = optimize(fire(), settings)
    (row,) = kept(settings)
    assert row.shipped == "reference"
    assert set(row.samples_us) == {5.0}
    assert set(row.sequential_us) == {LATENCIES_US["sequential"]}
    assert row.sum_us == result.predicted_us
    assert row.sequential_sum_us >= row.sum_us
    optimize(fire(), settings)
    optimize(fire(8), settings)
    assert len(kept(settings)) == 2  # one for each model and shape


def test_predictions_are_scaled_to_the_machine_speed_but_not_in_the_file(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds without a measured speed, such as disturbed ones, are ignored."""
    script_models(monkeypatch, LATENCIES_US)
    speeds = itertools.cycle([2.0, None, 3.0, 4.0])

    def rounds_of(*_: object) -> TakeRound:
        return lambda names: replace(
            scripted_round({name: LATENCIES_US.get(name, 99.0) for name in names}), slowness=next(speeds)
        )

    monkeypatch.setattr(cpu_open, "rounds_of", rounds_of)
    result = optimize(fire(), settings)
    (row,) = kept(settings)
    in_file_us = result.document.latency_us["predicted"]
    assert in_file_us is not None
    assert result.slowness == 3.0
    assert result.predicted_us == row.sum_us == pytest.approx(3.0 * in_file_us)


def test_a_given_schedule_stores_no_row(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, LATENCIES_US)
    found, before = optimize(fire(), settings), kept(settings)
    optimize(fire(), replace(settings, schedule_from=found.document))
    assert kept(settings) == before  # including the time at which it was stored


@pytest.mark.parametrize("after", [5, 6, 7, 12])
def test_an_interrupted_search_measures_no_further_operators_for_a_row(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is stored as soon as the six operators, which the search measures first, have latencies."""
    settings, interrupt = OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db"), Asked(answer=True)

    def come(count: int) -> None:
        interrupt.came = interrupt.came or count + 1 == after

    measured = script_stages(monkeypatch, come)
    script_models(monkeypatch, LATENCIES_US)
    optimize(fire(), settings, interrupt=interrupt)
    assert len(measured) == after
    assert len(kept(settings)) == int(after >= 6)


def test_rows_come_along_with_a_profile(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, LATENCIES_US)
    optimize(fire(), settings)
    with ProfileDatabase(settings.profile_db) as database, ProfileDatabase(None) as other:
        import_lines(other, export_lines(database))
        (row,) = kept(settings)
        assert other.wholes(row.device) == (row,)
        assert other.whole(row.key, row.device) == row
        assert other.whole("another", row.device) is None
