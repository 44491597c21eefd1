"""A profile as it was kept before the database had tables for what it keeps: every prefix that signatures had."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scripted import fire

from iosched.models.model import Model
from iosched.profiler.measuring.statistics import NOTHING_TO_RUN, UNRUNNABLE, Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.profiler.store.latencies import ModelLatencies
from iosched.profiler.store.schema import APPLICATION_ID, MIGRATIONS

OLD_EXPORT = Path(__file__).parents[1] / "profiler/store/exported_before_tables.jsonl"
"""What the last iosched with one table wrote, of a database that it had filled itself."""

CPU = device_key("cpu", "Some CPU", precision="mixed", threads=2, versions={"onnxruntime": "1.31.1"})
GPU = device_key("cuda", "Some GPU", precision="fp16", threads=8, versions={"cudnn": "9"})
WAYS = {"iosched": "found", "sequential": "in turn", "greedy": "in turn", "reference": "reference"}


def compared_model() -> Model:
    """The model whose comparisons are in it."""
    model = fire()
    vars(model)["digest"] = "00" * 32  # as if it had been computed: the digest that the profile has
    return model


def old_database(path: Path, version: int) -> None:
    """Makes a file of that schema version, up to the last with one table, as far as such a file had the columns."""
    lines = [json.loads(line) for line in OLD_EXPORT.read_text(encoding="utf-8").split("\n") if line]
    with sqlite3.connect(path) as raw:
        for statement in MIGRATIONS[:version]:
            assert isinstance(statement, str)
            raw.execute(statement)
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        raw.execute(f"PRAGMA user_version = {version}")
        columns = [column[1] for column in raw.execute("PRAGMA table_info(measurement)")]
        for line in lines:
            if "choice" not in line:
                line["samples"] = struct.pack(f"{len(line['samples'])}d", *line["samples"])
                values = [line.get(column) for column in columns]
                raw.execute(f"INSERT INTO measurement VALUES ({', '.join('?' * len(columns))})", values)
            elif version >= 2:
                raw.execute("INSERT INTO choice VALUES (?, ?, ?)", (line["device"], line["choice"], line["value"]))
        if version >= 5:
            raw.execute("INSERT INTO plan VALUES (?, ?, ?, ?)", (GPU, "conv:1", "eng7", b"\0plan"))
    raw.close()


def check_old_profile(database: ProfileDatabase, version: int = 5) -> None:
    """Whether a database answers all that was asked of the old one of that schema version as that did."""

    def timed(found: Measurement, clock_mhz: int, *throttled_by: str) -> Measurement:
        clock = {"clock_mhz": clock_mhz} if version >= 3 else {}
        return replace(found, **clock, throttled_by=throttled_by if version >= 4 else ())

    assert database.stage("2:64K:conv", CPU) == summarize([10.5, 9.25, 11.0, 10.0])
    assert database.stage("2:64K:conv", CPU, "again") == summarize([10.5, 9.5])
    assert database.stage("2:64K:conv", CPU, "rough") == summarize([20.0, 21.0])
    assert database.stage("2:64K:unmergeable", CPU) == UNRUNNABLE
    assert database.yardstick(CPU) == summarize([100.0, 101.0, 102.0])
    assert database.stage("conv", GPU) == timed(summarize([3.0, 1.0, 2.0]), 1410, "power cap", "heat")
    assert database.stage("conv", GPU, "again") == timed(summarize([2.5]), 1980)
    assert database.stage("views alone", GPU) == NOTHING_TO_RUN
    assert database.yardstick(GPU) is None
    assert database.choice("conv:1", GPU) == ("eng7\u2028k1=1" if version >= 2 else None)
    on_cpu, on_gpu = (ModelLatencies(compared_model(), database, device) for device in (CPU, GPU))
    rested = {name: replace(each, rested_us=_samples(name, 9.0, 8.0, 7.0)) for name, each in _compared(WAYS).items()}
    assert on_cpu.known(WAYS) == rested
    assert on_cpu.setting(WAYS) == "parallel mode, 2 x 1 threads"
    ways = {name: text for name, text in WAYS.items() if name != "reference"}
    assert on_cpu.known(ways) is None
    assert on_gpu.known(ways) == {name: timed(each, 900, "heat") for name, each in _compared(ways).items()}
    assert on_gpu.setting(ways) is None
    counted = {each.device: (each.measurements, each.samples) for each in database.stats().devices}
    assert counted == {CPU: (8, 29), GPU: (4, 10)}


def _compared(ways: Mapping[str, str]) -> dict[str, Measurement]:
    return {name: summarize(_samples(name, 5.0, 1.0, 3.0)) for name in ways}


def _samples(name: str, *of_the_first: float) -> tuple[float, ...]:
    place = {"iosched": 0, "sequential": 1, "greedy": 1, "reference": 2}[name]
    return tuple(sample + place for sample in of_the_first)
