"""A stage is looked up once and measured at most once; both are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import MOST_TRIES, StageMemory
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


DISTURBED = replace(summarize([5.0]), disturbed_by=("others had 50% of the cores",))


def test_what_was_disturbed_is_kept_as_such_and_measured_anew_when_that_is_wanted() -> None:
    answers = iter([DISTURBED, AGAIN])
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        assert memory.answer("stage", "first", lambda: next(answers)) == DISTURBED
        assert database.stage("stage", "device") == DISTURBED
        assert memory.answer("stage", "first", unasked) == DISTURBED
        assert memory.is_doubted("stage", "first")
        assert not memory.is_doubted("stage", "again")
        memory.try_again()
        assert memory.answer("stage", "first", lambda: next(answers)) == AGAIN
        assert not memory.is_doubted("stage", "first")
        assert database.stage("stage", "device") == AGAIN
        assert (memory.measurements, memory.anew, memory.disturbed, memory.cache_hits) == (2, 1, 0, 0)


def test_to_a_later_process_it_is_not_known() -> None:
    with ProfileDatabase(None) as database:
        StageMemory(database, "device").keep("stage", "first", DISTURBED)
        later = StageMemory(database, "device")
        assert later.latest("stage") is None
        assert later.answer("stage", "first", lambda: AGAIN) == AGAIN
        assert (later.measurements, later.anew, later.cache_hits) == (1, 0, 0)


def test_a_machine_that_is_never_quiet_is_tried_some_times_and_the_fastest_stays() -> None:
    tries = [replace(DISTURBED, median_us=us) for us in (5.0, 9.0, 4.0)]
    answers = iter(tries)
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        found = []
        for _ in range(MOST_TRIES + 2):
            found.append(memory.answer("stage", "first", lambda: next(answers)).median_us)
            memory.try_again()
        assert found == [5.0, 5.0, 4.0, 4.0, 4.0]
        assert not memory.is_doubted("stage", "first")
        assert (memory.measurements, memory.disturbed) == (MOST_TRIES, 1)


def test_the_latest_is_the_latest_that_was_not_disturbed() -> None:
    for resume in (True, False):
        with ProfileDatabase(None) as database:
            memory = StageMemory(database, "device", resume=resume)
            memory.keep("stage", "first", FOUND)
            memory.keep("stage", "again", DISTURBED)
            assert memory.latest("stage") == FOUND
