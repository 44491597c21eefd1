"""Rounds of whole models are stored: a later comparison continues where an earlier one ended."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from scripted import fire

from iosched.profiler.measuring.deciding import SampledRounds
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.store import latencies
from iosched.profiler.store.database import ProfileDatabase, export_lines, import_lines
from iosched.profiler.store.latencies import ModelLatencies

WAYS = {"iosched": "found", "sequential": "in turn", "reference": "onnxruntime"}
SETTINGS = {"reference": "one thread"}


def rounds(*latencies_us: float, ways: dict[str, str] = WAYS, load: Interference = Interference()) -> SampledRounds:  # noqa: B008 - frozen
    samples_us = {
        name: tuple(place * latency for latency in latencies_us) for place, name in enumerate(ways, 1)
    }  # fmt: skip
    rested_us = {name: tuple(us + 0.5 for us in each) for name, each in samples_us.items()}
    return SampledRounds(samples_us, rested_us, (load,) * len(latencies_us), (None, *[1.5] * (len(latencies_us) - 1)))


@pytest.fixture
def database(tmp_path: Path) -> ProfileDatabase:
    """A database whose clock goes a second ahead each time that it is read."""
    seconds = itertools.count()
    return ProfileDatabase(
        tmp_path / "p.db", clock=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(0, next(seconds))
    )


def opened(database: ProfileDatabase, *, resume: bool = True) -> ModelLatencies:
    return ModelLatencies(fire(), database, "a device", resume)


def test_rounds_are_read_back_unchanged_in_the_order_of_measurement(database: ProfileDatabase) -> None:
    sessions = (rounds(5.0, 1.0, 3.0), rounds(4.0), rounds(2.0, 6.0, load=Interference(0.5, 0.25)))
    with database:
        for each in sessions:
            opened(database).keep(WAYS, each, SETTINGS)
        assert opened(database).known(WAYS) == sessions
        assert opened(database).setting() == "one thread"


def test_a_candidate_that_ended_early_is_in_some_rounds_only(database: ProfileDatabase) -> None:
    fewer = rounds(4.0, ways={name: WAYS[name] for name in ("iosched", "reference")})
    with database:
        opened(database).keep(WAYS, rounds(5.0), SETTINGS)
        opened(database).keep(WAYS, fewer, SETTINGS)
        assert opened(database).known(WAYS) == (rounds(5.0), fewer)


def test_another_schedule_has_a_separate_name(database: ProfileDatabase) -> None:
    """The earlier schedule is kept, for its share of the error, under an unknown name."""
    others = {**WAYS, "iosched": "found later"}
    with database:
        opened(database).keep(WAYS, rounds(5.0), SETTINGS)
        (known,) = opened(database).known(others)
        assert known.samples_us.keys() - others.keys()
        assert "iosched" not in known.samples_us
        assert known.samples_us["reference"] == rounds(5.0).samples_us["reference"]


def test_identical_schedules_share_one_latency(database: ProfileDatabase) -> None:
    ways = {**WAYS, "greedy": WAYS["sequential"]}
    with database:
        opened(database).keep(WAYS, rounds(5.0, 1.0), SETTINGS)
        (known,) = opened(database).known(ways)
        assert known.samples_us["greedy"] == known.samples_us["sequential"] == rounds(5.0, 1.0).samples_us["sequential"]
        assert len(list(export_lines(database))) == len(WAYS)


def test_rounds_of_another_method_are_ignored(database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    with database:
        opened(database).keep(WAYS, rounds(5.0), SETTINGS)
        monkeypatch.setattr(latencies, "METHOD", latencies.METHOD + 1)
        assert (opened(database).known(WAYS), opened(database).setting()) == ((), None)


def test_incomplete_rounds_are_left_out(database: ProfileDatabase) -> None:
    """An imported file may have a schedule that was measured in other rounds."""
    with database, ProfileDatabase(None) as there:
        opened(database).keep(WAYS, rounds(5.0, 1.0), SETTINGS)
        rows = [json.loads(line) for line in export_lines(database)]
        import_lines(there, map(json.dumps, rows))
        assert opened(there).known(WAYS) == opened(database).known(WAYS)
    with ProfileDatabase(None) as there:
        rows[0]["samples_us"] = rows[0]["samples_us"][:1]
        import_lines(there, map(json.dumps, rows))
        assert opened(there).known(WAYS) == ()


def test_without_resuming_no_rounds_are_known(database: ProfileDatabase) -> None:
    with database:
        opened(database).keep(WAYS, rounds(5.0), SETTINGS)
        fresh = opened(database, resume=False)
        assert (fresh.known(WAYS), fresh.setting()) == ((), None)
        fresh.keep(WAYS, rounds(7.0), SETTINGS)
        assert opened(database).known(WAYS) == (rounds(5.0), rounds(7.0))
