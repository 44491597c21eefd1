"""A comparison of whole models is kept as one: samples of different ones make no rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from scripted import fire

from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.latencies import ModelLatencies
from iosched.profiler.store.transfer import export_lines, import_lines

WAYS = {"iosched": "found", "sequential": "in turn", "reference": "onnxruntime"}


def rounds(*latencies_us: float, scale: float = 1.0) -> dict[str, Measurement]:
    return {
        name: summarize([scale * place * latency for latency in latencies_us])
        for place, name in enumerate(WAYS, 1)
    }  # fmt: skip


def opened(database: ProfileDatabase) -> ModelLatencies:
    return ModelLatencies(fire(), database, "a device")


def test_rounds_come_back_as_they_were(tmp_path: Path) -> None:
    measured = rounds(5.0, 1.0, 3.0, 2.0)
    with ProfileDatabase(tmp_path / "p.db") as database:
        opened(database).keep(WAYS, measured)
    with ProfileDatabase(tmp_path / "p.db") as database:
        assert opened(database).known(WAYS) == measured


def test_latencies_after_a_rest_come_back_beside_those_in_a_row(tmp_path: Path) -> None:
    measured = {
        name: replace(each, rested_us=(9.0, 8.0, 7.0 + place))
        for place, (name, each) in enumerate(rounds(5.0, 1.0, 3.0).items())
    }
    with ProfileDatabase(tmp_path / "p.db") as database:
        opened(database).keep(WAYS, measured)
        assert opened(database).known(WAYS) == measured
        later = rounds(4.0, 2.0)
        opened(database).keep(WAYS, later)
        assert opened(database).known(WAYS) == later  # those of the earlier comparison are not of these rounds


def test_another_comparison_leaves_an_earlier_one_whole() -> None:
    """Both have the sequential schedule and plain onnxruntime in them, measured on a machine that became slower."""
    first, second = rounds(5.0, 1.0, 3.0, 2.0), rounds(7.0, 8.0, 9.0, scale=2.0)
    others = {**WAYS, "iosched": "another one"}
    with ProfileDatabase(":memory:") as database:
        kept = opened(database)
        kept.keep(WAYS, first)
        kept.keep(others, second)
        assert kept.known(WAYS) == first
        assert kept.known(others) == second
        assert kept.known({name: WAYS[name] for name in ("iosched", "reference")}) is None


def test_what_is_replaced_or_travels_is_replaced_as_a_whole() -> None:
    before, after = rounds(5.0, 1.0, 3.0, 2.0), rounds(7.0, 8.0, 9.0)
    with ProfileDatabase(":memory:") as here, ProfileDatabase(":memory:") as there:
        opened(here).keep(WAYS, before)
        opened(there).keep(WAYS, after)
        import_lines(here, export_lines(there))
        assert opened(here).known(WAYS) == after
        assert here.stats().measurements == 1


def test_candidates_that_are_alike_have_one_latency() -> None:
    ways = {**WAYS, "greedy": WAYS["sequential"]}
    measured = rounds(5.0, 1.0, 3.0)
    measured["greedy"] = measured["sequential"]
    with ProfileDatabase(":memory:") as database:
        opened(database).keep(ways, measured)
        assert opened(database).known(ways) == measured
        assert compare(measured["sequential"], measured["greedy"]) == compare(*[measured["greedy"]] * 2)


def test_the_clock_stays_with_the_comparison() -> None:
    hot = {name: replace(each, clock_mhz=900, throttled_by=("heat",)) for name, each in rounds(1.0, 2.0).items()}
    with ProfileDatabase(":memory:") as database:
        opened(database).keep(WAYS, hot)
        assert opened(database).known(WAYS) == hot


def test_a_setting_belongs_to_its_comparison() -> None:
    others = {**WAYS, "iosched": "another one"}
    measured = rounds(5.0, 1.0)
    with ProfileDatabase(":memory:") as database:
        kept = opened(database)
        kept.keep(WAYS, measured, {"reference": "one thread"})
        kept.keep(others, measured, {"reference": "two threads"})
        assert (kept.setting(WAYS), kept.setting(others)) == ("one thread", "two threads")
        assert kept.setting({"reference": "x"}) is None
        kept.keep(others, measured)
        assert (kept.setting(WAYS), kept.setting(others)) == ("one thread", None)
        assert kept.known(others) == measured


def test_a_comparison_that_is_not_whole_is_none() -> None:
    """A file that was imported may lack a candidate, or have one that was measured in other rounds."""
    with ProfileDatabase(":memory:") as here, ProfileDatabase(":memory:") as there:
        opened(here).keep(WAYS, rounds(5.0, 1.0, 3.0))
        lines = list(export_lines(here))
        import_lines(there, lines[1:])
        assert opened(there).known(WAYS) is None
        opened(there).keep(WAYS, rounds(5.0, 1.0))
        rows = [json.loads(line) for line in export_lines(there)]
        import_lines(here, [json.dumps(rows[0])])
        assert opened(here).known(WAYS) is None
        import_lines(here, map(json.dumps, rows))
        assert opened(here).known(WAYS) == rounds(5.0, 1.0)


def test_without_resuming_no_comparison_is_known() -> None:
    with ProfileDatabase(":memory:") as database:
        anew = ModelLatencies(fire(), database, "a device", resume=False)
        opened(database).keep(WAYS, rounds(5.0, 1.0), {"reference": "one thread"})
        assert (anew.known(WAYS), anew.setting(WAYS)) == (None, None)
        anew.keep(WAYS, rounds(7.0, 8.0))
        assert opened(database).known(WAYS) == rounds(7.0, 8.0)
