"""A stage is looked up once and measured at most once; both are counted."""

from __future__ import annotations

import pytest

from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import StageMemory
from iosched.profiler.store.tables import Turn

FOUND, AGAIN = summarize([1.0]), summarize([2.0])
TURNS: tuple[Turn, ...] = ("first", "again", "rough")


def unasked() -> Measurement:
    raise AssertionError("it is known")


def test_what_was_measured_is_remembered_and_kept() -> None:
    told: list[int] = []
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device", on_measured=lambda: told.append(1))
        assert memory.answer("stage", "first", lambda: FOUND) == FOUND
        assert memory.answer("stage", "first", unasked) == FOUND
        assert database.stage("stage", "device") == FOUND
        assert (memory.measurements, memory.cache_hits, len(told)) == (1, 0, 1)
        later = StageMemory(database, "device", on_measured=unasked)
        assert later.answer("stage", "first", unasked) == later.answer("stage", "first", unasked) == FOUND
        assert (later.measurements, later.cache_hits) == (0, 1)
        assert StageMemory(database, "another device").found("stage", "first") is None


def test_turns_are_kept_apart_and_the_later_is_the_latest() -> None:
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        assert memory.latest("stage") is None
        memory.keep("stage", "rough", AGAIN)
        assert memory.latest("stage") is None
        memory.keep("stage", "first", FOUND)
        assert memory.latest("stage") == FOUND
        memory.keep("stage", "again", AGAIN)
        assert memory.latest("stage") == AGAIN
        assert memory.answer("stage", "first", unasked) == FOUND
        assert [list(memory.met(turn)) for turn in TURNS] == [["stage"]] * 3
        assert StageMemory(database, "device").met("first") == {}


def test_what_interrupts_a_measurement_leaves_nothing_behind() -> None:
    def stopped() -> Measurement:
        raise KeyboardInterrupt

    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        with pytest.raises(KeyboardInterrupt):
            memory.answer("stage", "first", stopped)
        assert (memory.measurements, dict(memory.met("first")), list(database.rows())) == (0, {}, [])


def test_without_resuming_only_what_is_measured_now_is_known_and_stays() -> None:
    with ProfileDatabase(None) as database:
        database.keep_stage("stage", "device", FOUND)
        anew = StageMemory(database, "device", resume=False)
        assert (anew.found("stage", "first"), anew.latest("stage")) == (None, None)
        assert anew.answer("stage", "first", lambda: AGAIN) == anew.answer("stage", "first", unasked) == AGAIN
        assert anew.latest("stage") == database.stage("stage", "device") == AGAIN
        anew.keep("stage", "again", FOUND)
        assert anew.latest("stage") == FOUND
        assert (anew.measurements, anew.cache_hits) == (2, 0)


def test_without_resuming_a_measurement_supersedes_those_of_other_turns() -> None:
    """One that ended early, because the stage looked too slow, answered in place of what was measured later in full."""
    with ProfileDatabase(None) as database:
        for turn in TURNS:
            database.keep_stage("stage", "device", FOUND, turn)
            database.keep_stage("another", "device", FOUND, turn)
        anew = StageMemory(database, "device", resume=False)
        anew.keep("stage", "rough", AGAIN)
        anew.keep("stage", "first", AGAIN)
        assert [database.stage("stage", "device", turn) for turn in TURNS] == [AGAIN, None, AGAIN]
        assert [database.stage("another", "device", turn) for turn in TURNS] == [FOUND] * 3
