"""Profiles move between machines as lines of JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iosched.models.errors import UsageError
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import LONGEST_LINE, ProfileDatabase, device_key, export_lines, import_lines
from iosched.profiler.store.tables import (
    ROW_TYPES,
    CalibrationRow,
    ChoiceRow,
    ComparisonRow,
    Row,
    StageRow,
    columns_of,
    table_of,
)

CPU = device_key("cpu", "Some CPU", precision="mixed", threads=2, versions={"onnxruntime": "1.31.1"})
GPU = device_key("cuda", "Some GPU", precision="fp16", threads=8, versions={"cudnn": "9"})
FOUND = summarize([10.5, 9.25, 11.0, 10.0, 10.125, 9.5, 30.0])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("throttled_by", [(), ("power cap",), ("power cap", "thermal slowdown")])
def test_the_clock_is_kept_and_moves_with_the_measurement(throttled_by: tuple[str, ...]) -> None:
    found = replace(FOUND, clock_mhz=1410, throttled_by=throttled_by)
    with ProfileDatabase(None) as profile, ProfileDatabase(None) as other:
        profile.keep_stage("s", GPU, found)
        assert profile.stage("s", GPU) == found
        other.keep_stage("s", GPU, FOUND)
        other.clear()
        import_lines(other, export_lines(profile))
        assert other.stage("s", GPU) == found
        profile.keep_stage("s", GPU, FOUND)
        assert profile.stage("s", GPU) == FOUND


@pytest.mark.parametrize(
    "clock",
    [{"clock_mhz": -1, "throttled_by": ""}, {"clock_mhz": 10**30, "throttled_by": ""}, {"clock_mhz": "fast"},
     {"clock_mhz": 1, "throttled_by": ["power cap"]}, {"clock_mhz": 1, "throttled_by": "\ud800"}],
)  # fmt: skip
def test_an_invalid_clock_is_refused(clock: dict[str, object]) -> None:
    with ProfileDatabase(None) as profile:
        profile.keep_stage("s", GPU, FOUND)
        (line,) = export_lines(profile)
        with pytest.raises(UsageError, match="line 1 is not a row"):
            import_lines(profile, [json.dumps({**json.loads(line), **clock})])


def test_export_is_sorted_and_comes_back_whole() -> None:
    with ProfileDatabase(None, clock=lambda: NOON) as profile:
        for signature, device in (("b", GPU), ("a", GPU), ("ü", CPU)):
            profile.keep_stage(signature, device, FOUND)
        lines = list(export_lines(profile))
    fields = [json.loads(line) for line in lines]
    assert [(row["device"], row["signature"]) for row in fields] == [(CPU, "ü"), (GPU, "a"), (GPU, "b")]
    assert fields[0] == {
        "table": "stage", "device": CPU, "signature": "ü", "turn": "first", "measured_at": "2026-01-01T12:00:00Z",
        "samples_us": list(FOUND.samples_us),
    }  # fmt: skip
    with ProfileDatabase(None) as other:
        assert import_lines(other, [*lines, "\n"]) == 3
        assert list(export_lines(other)) == lines
        assert import_lines(other, lines) == 0


def test_import_keeps_the_newer_of_two() -> None:
    with ProfileDatabase(None, clock=lambda: NOON) as old, ProfileDatabase(None, clock=datetime.now) as new:
        old.keep_stage("s", CPU, summarize([1.0]))
        new.keep_stage("s", CPU, summarize([2.0]))
        assert import_lines(new, list(export_lines(old))) == 0
        assert new.stage("s", CPU) == summarize([2.0])
        assert import_lines(old, list(export_lines(new))) == 1
        assert old.stage("s", CPU) == summarize([2.0])


GOOD_LINE = json.dumps(
    {"table": "stage", "device": "d", "signature": "s", "turn": "first", "measured_at": "2026-01-01T12:00:00Z",
     "samples_us": [1.0]}
)  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        "garbage", "[]", "{}", "null", "[" * 100_000, '{"a":' * 100_000,
        '{"device": "d", "choice": 1, "value": "x"}',
        GOOD_LINE.replace('"stage"', '"stages"'),
        GOOD_LINE.replace('"stage"', "7"),
        GOOD_LINE.replace('"first"', '"last"'),
        *(GOOD_LINE.replace("[1.0]", samples)
          for samples in ("[-1.0]", "[NaN]", "[1e999]", "[1" + "0" * 400 + "]", "[1e12]", "1.0", '["1"]')),
        *(GOOD_LINE.replace('"s"', name)
          for name in ("7", "null", '"\\ud800"', '"\\udc00"')),
        GOOD_LINE.replace("2026-01-01", "yesterday"),
        GOOD_LINE.replace('"table": "stage", ', ""),
        GOOD_LINE.replace("2026-01-01T12:00:00Z", "0001-01-01T00:00:00+14:00"),
        GOOD_LINE.replace("2026-01-01T12:00:00Z", "9999-12-31T23:59:59-14:00"),
        pytest.param(GOOD_LINE + " " * LONGEST_LINE, id="longer than any row"),
    ],
)  # fmt: skip
def test_one_bad_line_is_named_and_nothing_is_imported(bad: str) -> None:
    with ProfileDatabase(None) as profile:
        with pytest.raises(UsageError, match="line 2 is not a row") as error:
            import_lines(profile, [GOOD_LINE, bad])
        assert len(str(error.value)) < 1000
        assert profile.stats().measurements == 0
        assert import_lines(profile, [GOOD_LINE]) == 1
        assert import_lines(profile, [GOOD_LINE]) == 0, "it is the same"


def test_choices_move_with_the_measurements_and_are_forgotten_with_them(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "a.db") as one, ProfileDatabase(tmp_path / "b.db") as two:
        one.choose("conv", "gpu", "7")
        one.choose("gemm", "gpu", "3")
        two.choose("gemm", "gpu", "4")
        assert import_lines(two, export_lines(one)) == 1
        assert [two.choice(key, "gpu") for key in ("conv", "gemm")] == ["7", "4"]
        two.clear("gpu")
        assert two.choice("conv", "gpu") is None


def test_rounds_move_with_their_load_and_setting() -> None:
    rows = [
        ComparisonRow(CPU, "key", "a", NOON, (1.0, 2.0), (2.0, 3.0), None, (0.0, 0.4), (0.1, 0.0)),
        ComparisonRow(CPU, "key", "b", NOON, (1.5, 2.5), (2.5, 3.5), "one thread", (0.0, 0.4), (0.1, 0.0)),
    ]
    with ProfileDatabase(None) as profile, ProfileDatabase(None) as other:
        profile.keep_rounds(rows)
        assert import_lines(other, export_lines(profile)) == 2
        assert other.rounds("key", CPU) == profile.rounds("key", CPU)
        assert [replace_time(row) for row in other.rounds("key", CPU)] == rows
        assert other.stats().devices[0].measurements == 3, "in a row, after a rest, and the best setting"


def replace_time(row: ComparisonRow) -> ComparisonRow:
    return msgspec.structs.replace(row, measured_at=NOON)


NAMES = st.text(max_size=4)  # hypothesis gives no lone surrogates unless it is asked for them
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
LATENCIES = st.lists(st.floats(0, 1e12, exclude_max=True), max_size=4).map(tuple)
CLOCKS = st.builds(dict) | st.builds(dict, clock_mhz=st.integers(0, 999_999), throttled_by=NAMES)
SETTINGS = st.none() | NAMES


def _with_clock(kind: type[Row], *columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    return st.builds(lambda clock, *values: kind(*values, **clock), CLOCKS, *columns)


ROWS = st.one_of(
    st.builds(ChoiceRow, NAMES, NAMES, NAMES),
    st.builds(CalibrationRow, NAMES, TIMES, LATENCIES),
    _with_clock(StageRow, NAMES, NAMES, st.sampled_from(["first", "again", "rough"]), TIMES, st.none() | LATENCIES),
    st.builds(
        ComparisonRow, NAMES, NAMES, NAMES, TIMES, LATENCIES, LATENCIES, SETTINGS, LATENCIES, LATENCIES, LATENCIES
    ),
)


@given(st.lists(ROWS, max_size=12))
def test_export_import_export_is_the_identity(rows: list[Row]) -> None:
    with ProfileDatabase(None) as one, ProfileDatabase(None) as two:
        one.merge(rows)
        lines = list(export_lines(one))
        assert import_lines(two, lines) == len(lines)
        assert list(export_lines(two)) == lines
        assert two.stats().devices == one.stats().devices


@given(st.lists(ROWS, max_size=8), st.permutations(range(8)))
def test_the_newest_of_several_rows_of_one_key_is_kept_in_any_order_of_import(
    rows: list[Row], order: list[int]
) -> None:
    measured = [row for row in rows if not isinstance(row, ChoiceRow)]
    shuffled = [measured[place] for place in order if place < len(measured)]
    times = [row.measured_at for row in measured]
    assume(len({*times}) == len(times))
    with ProfileDatabase(None) as one, ProfileDatabase(None) as two:
        one.merge(measured)
        two.merge(shuffled)
        assert list(one.rows()) == list(two.rows())


def test_the_guide_lists_all_columns_of_all_tables() -> None:
    """Each line there is an object that begins with its table, and names its columns in quotation marks."""
    text = (Path(__file__).parents[3] / "docs/json.md").read_text(encoding="utf-8")
    lines = re.findall(r'\{"table": "(\w+)", ([^}]*)\}', text)
    named = {table: re.findall(r'(?:^|, |\n *)"(\w+)"', columns) for table, columns in lines}
    assert named == {table_of(kind): list(columns_of(kind)) for kind in ROW_TYPES}
