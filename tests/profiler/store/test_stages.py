"""A stage is looked up once and measured at most once; both are counted."""

from __future__ import annotations

import pytest

from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import StageMemory

FOUND, AGAIN = summarize([1.0]), summarize([2.0])


def unasked() -> Measurement:
    raise AssertionError("it is known")


def test_what_was_measured_is_remembered_and_kept() -> None:
    told: list[int] = []
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device", lambda: told.append(1))
        assert memory.answer("stage", "first", lambda: FOUND) == FOUND
        assert memory.answer("stage", "first", unasked) == FOUND
        assert database.stage("stage", "device") == FOUND
        assert (memory.measurements, memory.cache_hits, len(told)) == (1, 0, 1)
        later = StageMemory(database, "device", unasked)
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
        assert [list(memory.met(turn)) for turn in ("first", "again", "rough")] == [["stage"]] * 3
        assert StageMemory(database, "device").met("first") == {}


def test_what_interrupts_a_measurement_leaves_nothing_behind() -> None:
    def stopped() -> Measurement:
        raise KeyboardInterrupt

    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        with pytest.raises(KeyboardInterrupt):
            memory.answer("stage", "first", stopped)
        assert (memory.measurements, dict(memory.met("first")), list(database.rows())) == (0, {}, [])
