"""Results of `bench --json` are read back, and other files are refused."""

from __future__ import annotations

import json

import pytest

from iosched.jobs.difference.bench_file import is_bench, parse_bench
from iosched.models.errors import UsageError


def result(**changes: object) -> dict[str, object]:
    found = {
        "model": "net",
        "device": "CPU",
        "batch_size": 1,
        "rows": [{"name": "iosched", "median_us": 2.0, "in_flight": 2}, {"name": "greedy"}],
        "samples_us": {"iosched": [2, 4.0]},
        "later": {"more": []},
    }
    return {**found, **changes}


def test_an_indented_object_and_a_line_per_batch_size_are_read() -> None:
    (line,) = parse_bench(json.dumps(result(), indent=2).encode(), "f").lines
    assert (line.model, line.batch_size, line.names) == ("net", 1, ("iosched",))
    assert line.samples("iosched") == (1.0, 2.0)
    text = f"{json.dumps(result())}\n{json.dumps(result(batch_size=8))}\n\n"
    assert [line.batch_size for line in parse_bench(text.encode(), "f").lines] == [1, 8]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        json.dumps(result(rows=3)).encode(),
        json.dumps(result(samples_us={"iosched": ["fast"]})).encode(),
        json.dumps(result(rows=[{"name": "iosched", "in_flight": 0}])).encode(),
        json.dumps(result())[:-20].encode(),
        b'{"rows": [], "samples_us": ' + b"[" * 100_000,
    ],
)
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^f: not a result"):
        parse_bench(data, "f")


@pytest.mark.parametrize("sample", [0, -1.0, 5e-324, 1e300])
def test_impossible_samples_are_refused(sample: float) -> None:
    with pytest.raises(UsageError, match="samples of 'iosched' are outside"):
        parse_bench(json.dumps(result(samples_us={"iosched": [1.0, sample]})).encode(), "f")


def test_a_repeated_batch_size_is_refused() -> None:
    text = f"{json.dumps(result())}\n{json.dumps(result())}\n"
    with pytest.raises(UsageError, match="several results have the same batch size"):
        parse_bench(text.encode(), "f")


def test_a_schedule_is_not_a_bench_result() -> None:
    assert is_bench(json.dumps(result()).encode())
    assert not is_bench(b'{"model": {}, "blocks": []}')
