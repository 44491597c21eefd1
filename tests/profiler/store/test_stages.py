"""A stage is looked up once and measured at most once; both are counted."""

from __future__ import annotations

import pytest

from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import MOST_TRIES, StageMemory
from iosched.profiler.store.tables import Turn

FOUND, AGAIN = summarize([1.0]), summarize([2.0])
TURNS: tuple[Turn, ...] = ("first", "again", "rough")


def unasked() -> Measurement:
    raise AssertionError("it is known")


def test_a_measurement_is_remembered_and_stored() -> None:
    reported: list[int] = []
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device", on_measured=lambda: reported.append(1))
        assert memory.answer("stage", "first", lambda: FOUND) == FOUND
        assert memory.answer("stage", "first", unasked) == FOUND
        assert database.stage("stage", "device") == FOUND
        assert (memory.measurements, memory.cache_hits, len(reported)) == (1, 0, 1)
        later = StageMemory(database, "device", on_measured=unasked)
        assert later.answer("stage", "first", unasked) == later.answer("stage", "first", unasked) == FOUND
        assert (later.measurements, later.cache_hits) == (0, 1)
        assert StageMemory(database, "another device").found("stage", "first") is None


def test_turns_are_stored_separately_and_the_latest_one_is_found() -> None:
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


def test_an_interrupted_measurement_leaves_nothing_behind() -> None:
    def stopped() -> Measurement:
        raise KeyboardInterrupt

    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        with pytest.raises(KeyboardInterrupt):
            memory.answer("stage", "first", stopped)
        assert (memory.measurements, dict(memory.met("first")), list(database.rows())) == (0, {}, [])


def test_without_resuming_only_new_measurements_are_known() -> None:
    with ProfileDatabase(None) as database:
        database.keep_stage("stage", "device", FOUND)
        fresh = StageMemory(database, "device", resume=False)
        assert (fresh.found("stage", "first"), fresh.latest("stage")) == (None, None)
        assert fresh.answer("stage", "first", lambda: AGAIN) == fresh.answer("stage", "first", unasked) == AGAIN
        assert fresh.latest("stage") == database.stage("stage", "device") == AGAIN
        fresh.keep("stage", "again", FOUND)
        assert fresh.latest("stage") == FOUND
        assert (fresh.measurements, fresh.cache_hits) == (2, 0)


def test_without_resuming_a_measurement_supersedes_those_of_other_turns() -> None:
    """One that ended early, because the stage looked too slow, must not answer in place of a later full one."""
    with ProfileDatabase(None) as database:
        for turn in TURNS:
            database.keep_stage("stage", "device", FOUND, turn)
            database.keep_stage("another", "device", FOUND, turn)
        fresh = StageMemory(database, "device", resume=False)
        fresh.keep("stage", "rough", AGAIN)
        fresh.keep("stage", "first", AGAIN)
        assert [database.stage("stage", "device", turn) for turn in TURNS] == [AGAIN, None, AGAIN]
        assert [database.stage("another", "device", turn) for turn in TURNS] == [FOUND] * 3


def disturbed(us: float) -> Measurement:
    return disturbance.disturbed(summarize([us]), ("other processes used 50% of the cores",))


DISTURBED = disturbed(5.0)


def test_a_disturbed_measurement_is_stored_and_repeated_on_request() -> None:
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
        assert (memory.measurements, memory.repeated, memory.disturbed, memory.cache_hits) == (2, 1, 0, 0)


def test_a_later_process_finds_a_disturbed_measurement_and_repeats_it_on_request() -> None:
    with ProfileDatabase(None) as database:
        StageMemory(database, "device").keep("stage", "first", DISTURBED)
        later = StageMemory(database, "device")
        assert later.latest("stage") == later.answer("stage", "first", unasked) == DISTURBED
        assert (DISTURBED.low_us, DISTURBED.high_us) == (2.0, 12.5)
        assert (later.cache_hits, later.signatures, later.disturbed, later.repeatable) == (1, 1, 1, 2)
        later.try_again()
        assert later.answer("stage", "first", lambda: AGAIN) == AGAIN
        assert (later.measurements, later.repeated, later.disturbed, later.repeatable) == (1, 1, 0, 0)


def test_repeats_are_at_most_a_third_of_the_known_stages() -> None:
    with ProfileDatabase(None) as database:
        for _ in range(2):
            memory = StageMemory(database, "device")
            names = [str(number) for number in range(30)]
            for name in names:
                memory.answer(name, "first", lambda: DISTURBED)
            for _ in range(MOST_TRIES):
                memory.try_again()
                for name in names:
                    memory.answer(name, "first", lambda: DISTURBED)
            assert (memory.repeated, memory.repeatable) == (10, 0)
            assert memory.measurements + memory.cache_hits == 40
            assert not any(memory.is_doubted(name, "first") for name in names)


def test_a_stage_counts_once_and_as_disturbed_if_no_turn_has_anything_better() -> None:
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        memory.keep("stage", "rough", DISTURBED)
        memory.keep("stage", "again", DISTURBED)
        memory.keep("other", "first", DISTURBED)
        assert (memory.signatures, memory.disturbed) == (2, 2)
        memory.keep("stage", "first", FOUND)
        assert (memory.signatures, memory.disturbed) == (2, 1)
        (stats,) = database.stats().devices
        assert (stats.stages, stats.disturbed, stats.measurements) == (2, 1, 4)


def test_on_a_machine_that_is_never_quiet_the_median_of_the_tries_stays() -> None:
    tries = [disturbed(us) for us in (9.0, 5.0, 4.0)]
    answers = iter(tries)
    with ProfileDatabase(None) as database:
        memory = StageMemory(database, "device")
        found = []
        for _ in range(MOST_TRIES + 2):
            found.append(memory.answer("stage", "first", lambda: next(answers)).median_us)
            memory.try_again()
        assert found == [9.0, 5.0, 5.0, 5.0, 5.0]
        assert not memory.is_doubted("stage", "first")
        assert (memory.measurements, memory.disturbed) == (MOST_TRIES, 1)


def test_the_latest_is_the_latest_that_was_not_disturbed() -> None:
    for resume in (True, False):
        with ProfileDatabase(None) as database:
            memory = StageMemory(database, "device", resume=resume)
            memory.keep("stage", "first", FOUND)
            memory.keep("stage", "again", DISTURBED)
            assert memory.latest("stage") == FOUND
