"""`iosched bench --requests`: its options, its table and its JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest
from shipped import optimized_file
from small_models import branches, chain

import iosched
from iosched.jobs.load_test import load_test as job
from iosched.jobs.load_test.arrivals import Arrival
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.load_test import LoadResult, LoadSettings
from iosched.jobs.load_test.sender import Answer
from iosched.profiler.baselines.names import UNDER_LOAD

QUANTILES = {f"p{n}{end}_us" for n in (50, 90, 99) for end in ("", "_low", "_high")}


@pytest.fixture
def files(workdir: Path) -> tuple[str, str]:
    onnx.save(branches(), workdir / "a.onnx")
    onnx.save(chain(), workdir / "b.onnx")
    return "a.onnx", "b.onnx"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], LoadSettings]]:
    """Replaces measuring with a made-up result; collects the models' names and the settings."""
    found: list[tuple[list[str], LoadSettings]] = []

    def fake(models: dict[str, Any], settings: LoadSettings, observer: object) -> LoadResult:
        found.append((list(models), settings))
        few = tuple(Answer("a", latency_us, 100.0) for latency_us in (1e3, 2e3, 2e3, 2e3, 3e3, 9e3))
        bad = (*few[:3], *(Answer("a", math.inf, 100.0, "the queue is full"),) * 3)
        rows = (LoadRow("onnxruntime", "a", 3.0, 5e3, 2.0, few), LoadRow("openvino-streams", "a", 3.0, 5e3, 2.0, bad))
        return LoadResult(rows, "Test CPU", 2, 0, {"a": 1e3}, {"iosched": "not today"})

    monkeypatch.setattr(job, "load_test", fake)
    return found


def test_rates_and_deadlines_apply_to_all_models_or_to_named_ones(invoke, files, asked) -> None:
    words = ("bench", *files, "--requests", "20/s,b=5/s", "--deadline", "a=50ms,b=1s", "--duration", 7)
    assert invoke(*words, "--with", "onnxruntime", "--threads", 1).exit_code == 0
    assert asked == [
        (
            ["a", "b"],
            LoadSettings(
                {"a": 20.0, "b": 5.0},
                duration_s=7.0,
                deadlines_s={"a": 0.05, "b": 1.0},
                names=("onnxruntime",),
                threads=1,
            ),
        )
    ]


def test_files_with_the_same_stem_get_distinct_names(invoke, files, asked) -> None:
    assert invoke("bench", "a.onnx", "a.onnx", "c=b.onnx", "--requests", "a=1/s,a-2=2/s,c=3/s").exit_code == 0
    assert asked[0][0] == ["a", "a-2", "c"]


def test_exported_models_and_those_of_the_zoo_are_read(invoke, files, asked, workdir: Path) -> None:
    iosched.export(optimized_file(workdir / "o.onnx", branches()), workdir / "e.plan", threads=1)
    assert invoke("bench", "e.plan", "n=e.plan", "zoo:squeezenet", "--requests", "e.plan=1/s,2/s").exit_code == 0
    assert asked[0][0] == ["e", "n", "squeezenet"]
    assert asked[0][1].rates["e"] == 1.0


def test_arrivals_come_from_a_file(invoke, complains, files, asked, workdir: Path) -> None:
    (workdir / "times").write_text("0.5 b\n0.1 a\n")
    assert invoke("bench", *files, "--arrivals", "times").exit_code == 0
    assert asked[0][1] == LoadSettings({}, (Arrival(0.1, "a"), Arrival(0.5, "b")))
    (workdir / "times").write_text("0.5 c\n")
    complains(invoke("bench", *files, "--arrivals", "times"), 2, "times, line 1", "c")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--requests", "20"), "20/s"),
        (("--requests", "c=1/s"), "no such model"),
        (("--requests", "a=1/s"), "model b"),
        (("--requests", "1/s", "--deadline", "5"), "50ms"),
        (("--requests", "1/s", "--rounds", "9"), "--rounds"),
        (("--requests", "1/s", "--arrivals", "a.onnx"), "--arrivals contradict"),
        (("--requests", "1/s", "--baseline", "greedy"), "--baseline"),
        (("--requests", "1/s", "--device", "cuda"), "--device cuda"),
        (("--requests", "1/s", "--with", "greedy"), "--with greedy"),
        (("--requests", "1/s", "--duration", "-1"), "--duration"),
        ((), "--requests"),
    ],
)
def test_wrong_usage_is_refused(invoke, complains, files, asked, words: tuple[str, ...], named: str) -> None:
    complains(invoke("bench", *files, *words), 2, named)
    assert asked == []


def test_options_of_requests_need_them_and_their_rows_too(invoke, complains, files, asked) -> None:
    complains(invoke("bench", "a.onnx", "--deadline", "5ms"), 2, "--requests")
    complains(invoke("bench", "a.onnx", "--with", "onnxruntime-divided"), 2, "onnxruntime-divided")


def test_json_has_the_keys_that_scripts_rely_on(invoke, files, asked) -> None:
    result = invoke("bench", *files, "--requests", "3/s", "--json")
    found = json.loads(result.stdout)
    assert set(found) == {
        *("device", "threads", "seconds", "rows", "lag_us", "latencies_us", "missing", "notes", "provenance")
    }
    first, second = found["rows"]
    assert set(first) == QUANTILES | {
        "name",
        "model",
        "rate_per_s",
        "requests",
        "deadline_us",
        "goodput_per_s",
        "unanswered",
    }
    assert (first["p50_us"], first["p50_low_us"], first["p50_high_us"], first["p99_us"]) == (2e3, 1e3, 9e3, None)
    assert (second["goodput_per_s"], second["unanswered"], second["p50_high_us"]) == (1.5, 3, None)
    assert found["latencies_us"]["openvino-streams"]["a"] == [1e3, 2e3, 2e3, None, None, None]
    assert found["provenance"]["seeds"] == {"inputs": 0, "arrivals": 0}
    assert "openvino-streams did not answer 3 of 6 requests of a: the queue is full." in result.stderr
    assert "iosched is skipped: not today" in result.stderr


def test_the_table_has_a_line_for_each_model_and_alternative(invoke, files, asked) -> None:
    lines = invoke("bench", *files, "--requests", "3/s").stdout.splitlines()
    assert lines[0] == "a 3/s on 2 threads of Test CPU: 6 of a in 2.0 s"
    assert lines[1].split()[:2] == ["model", "p50"]
    assert " ".join(lines[2].split()) == "a onnxruntime 2.0 ms (1.0 ms to 9.0 ms) unknown unknown 2.5/s 0"
    assert "no answer (1.0 ms to no answer)" in lines[3]
    assert lines[4:] == [
        "rows",
        f"  onnxruntime       {UNDER_LOAD['onnxruntime']}",
        f"  openvino-streams  {UNDER_LOAD['openvino-streams']}",
    ]


def test_small_models_are_measured(invoke, files) -> None:
    words = ("--requests", "40/s", "--duration", 1, "--with", "onnxruntime-sessions", "--threads", 1, "--json")
    found = json.loads(invoke("bench", *files, *words).stdout)
    assert [(row["model"], row["requests"] > 10) for row in found["rows"]] == [("a", True), ("b", True)]
