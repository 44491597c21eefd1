"""`--no-resume`: what is measured anew replaces all that was known, and nothing else is believed but the yardstick."""

from __future__ import annotations

from pathlib import Path

from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.refresh import Refreshed
from iosched.profiler.store.tables import Compared

OLD, NEW = summarize([1.0]), summarize([2.0])


def test_only_what_is_measured_anew_is_known_and_stays(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.db") as database:
        database.keep_stage("stage", "device", OLD)
        refreshed = Refreshed(database)
        assert refreshed.stage("stage", "device") is None
        refreshed.keep_stage("stage", "device", NEW)
        assert refreshed.stage("stage", "device") == NEW
        assert refreshed.stage("stage", "another device") is None
    with ProfileDatabase(tmp_path / "p.db") as database:
        assert database.stage("stage", "device") == NEW


def test_the_yardstick_is_not_measured_anew() -> None:
    """What is stored of other models is relative to it."""
    with ProfileDatabase(None) as database:
        database.keep_yardstick("device", OLD)
        assert Refreshed(database).yardstick("device") == OLD
        Refreshed(database).keep_yardstick("other", NEW)
        assert database.yardstick("other") == NEW


def test_a_measurement_supersedes_those_of_other_turns() -> None:
    """One that ended early, because the stage looked too slow, answered in place of what was measured later in full."""
    with ProfileDatabase(None) as database:
        for turn in ("first", "again", "rough"):
            database.keep_stage("stage", "device", OLD, turn)
            database.keep_stage("another", "device", OLD, turn)
        refreshed = Refreshed(database)
        refreshed.keep_stage("stage", "device", NEW, "rough")
        refreshed.keep_stage("stage", "device", NEW, "first")
        assert [database.stage("stage", "device", turn) for turn in ("first", "again", "rough")] == [NEW, None, NEW]
        assert [database.stage("another", "device", turn) for turn in ("first", "again", "rough")] == [OLD] * 3


def test_a_comparison_is_made_anew() -> None:
    old, new = {"candidate": Compared(OLD)}, {"candidate": Compared(NEW)}
    with ProfileDatabase(None) as database:
        database.keep_comparison("key", "device", old)
        refreshed = Refreshed(database)
        assert refreshed.comparison("key", "device") == {}
        assert refreshed.undivided("key", "device") is None
        refreshed.keep_comparison("key", "device", new)
        assert refreshed.comparison("key", "device") == database.comparison("key", "device") == new
