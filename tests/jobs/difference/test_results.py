"""Two results of `bench`: whether one is slower, beyond the uncertainty of their samples."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from iosched.jobs.difference import results
from iosched.jobs.difference.bench_file import BenchFile, BenchLine, BenchRow
from iosched.jobs.difference.results import compare_results, gate, ratio_interval
from iosched.models.errors import MismatchError, UsageError
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Interval

NOISE = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.0, 0.99, 1.01)


def line(rounds: int = len(NOISE), batch_size: int = 1, **medians: float) -> BenchLine:
    """A result with rows of these medians, whose samples vary by 2 %."""
    samples = {name: tuple(median * each for each in NOISE[:rounds]) for name, median in medians.items()}
    return BenchLine("net", "Test CPU", batch_size, tuple(map(BenchRow, medians)), samples)


def file(*lines: BenchLine, place: str = "a.json") -> BenchFile:
    return BenchFile(place, lines)


def test_rows_are_compared_by_their_medians() -> None:
    found = compare_results(file(line(iosched=100, greedy=200)), file(line(iosched=150, greedy=100)))
    first, second = found.rows
    assert (first.name, first.before, first.after, first.ratio) == ("iosched", 100, 150, 1.5)
    assert (first.verdict, second.verdict) == ("slower", "faster")
    assert first.interval is not None
    assert 1.4 < first.interval.low <= 1.5 <= first.interval.high < 1.6
    assert first.samples == (9, 9)


def test_a_result_does_not_differ_from_itself() -> None:
    one = file(line(iosched=100))
    (row,) = compare_results(one, one).rows
    assert (row.ratio, row.verdict) == (1, "no difference")


def test_rows_in_only_one_result_are_named() -> None:
    found = compare_results(file(line(iosched=1, openvino=1)), file(line(iosched=1, greedy=1)))
    assert [row.name for row in found.rows] == ["iosched"]
    assert (found.only_before, found.only_after) == (((1, "openvino"),), ((1, "greedy"),))


def test_each_batch_size_is_compared_with_its_own() -> None:
    found = compare_results(
        file(line(iosched=100), line(iosched=800, batch_size=8)), file(line(iosched=800, batch_size=8))
    )
    assert [(row.batch_size, row.ratio) for row in found.rows] == [(8, 1)]


def test_concurrent_runs_divide_their_latency() -> None:
    two = msgspec.structs.replace(line(iosched=100), rows=(BenchRow("iosched", 2),))
    (row,) = compare_results(file(line(iosched=100)), file(two)).rows
    assert (row.after, row.ratio) == (50, 0.5)


def test_relative_to_another_row_a_slower_machine_makes_no_difference() -> None:
    before, after = file(line(iosched=100, onnxruntime=120)), file(line(iosched=200, onnxruntime=240))
    (row,) = compare_results(before, after, relative_to="onnxruntime").rows
    assert row.name == "iosched"
    assert row.interval is not None
    assert (row.ratio, row.interval.low, row.interval.high) == pytest.approx((1, 1, 1))
    assert row.before == pytest.approx(100 / 120)
    with pytest.raises(UsageError, match="row 'torch' is not in both"):
        compare_results(before, after, relative_to="torch")


@pytest.mark.parametrize(
    ("change", "words"), [({"model": "other"}, "different models"), ({"device": "Other CPU"}, "different devices")]
)
def test_results_of_other_models_or_devices_need_the_anyway_option(change: dict[str, str], words: str) -> None:
    one, other = file(line(iosched=1)), file(msgspec.structs.replace(line(iosched=1), **change), place="b.json")
    with pytest.raises(UsageError, match=rf"{words}.*--anyway"):
        compare_results(one, other)
    found = compare_results(one, other, anyway=True)
    assert words in found.remarks[0]
    assert len(found.rows) == 1


def test_other_batch_sizes_need_the_anyway_option() -> None:
    one, other = file(line(iosched=1)), file(line(iosched=1, batch_size=8))
    with pytest.raises(UsageError, match=r"different batch sizes \(1 and 8\)"):
        compare_results(one, other)
    assert "different batch sizes" in compare_results(one, other, anyway=True).remarks[0]


def test_results_without_common_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="no row in common"):
        compare_results(file(line(greedy=1)), file(line(iosched=1)))


@pytest.mark.parametrize(
    ("after", "allowed", "passes"),
    [(150.0, 0.03, False), (150.0, 0.6, True), (101.0, 0.0, True), (90.0, 0.0, True), (106.0, 0.03, False)],
)
def test_a_gate_fails_where_the_whole_interval_lies_above_it(after: float, allowed: float, passes: bool) -> None:
    found = compare_results(file(line(iosched=100)), file(line(iosched=after)))
    judged = gate(found, allowed)
    assert (judged.failure is None) is passes
    assert bool(judged.failed) is not passes


def test_an_end_of_the_interval_on_the_gate_passes() -> None:
    (row,) = (found := compare_results(file(line(iosched=100)), file(line(iosched=150)))).rows
    found = replace(found, rows=(replace(row, interval=Interval(1.5, 1.25, 1.75)),))
    assert gate(found, 0.25).failure is None
    assert isinstance(gate(found, 0.2499).failure, MismatchError)


def test_a_gate_applies_to_the_shipped_row_unless_others_are_named() -> None:
    found = compare_results(file(line(iosched=100, greedy=100)), file(line(iosched=100, greedy=150)))
    assert gate(found, 0.03).failure is None
    failure = gate(found, 0.03, ["iosched", "greedy"]).failure
    assert failure is not None
    assert "greedy 1.500x" in str(failure)
    assert "iosched" not in str(failure)
    with pytest.raises(UsageError, match=r"row 'openvino' is not in both.*iosched, greedy"):
        gate(found, 0.03, ["openvino"])


def test_a_gate_without_enough_samples_is_an_error() -> None:
    found = compare_results(file(line(5, iosched=100)), file(line(iosched=100)))
    assert found.rows[0].verdict is None
    with pytest.raises(UsageError, match="--rounds"):
        gate(found, 0.03)


def drawn(seed: int, count: int = 30, scale: float = 1.0) -> list[float]:
    """Latencies with a heavy tail, as on shared machines; their true median is `scale`."""
    return list(scale * np.random.default_rng(seed).lognormal(0.0, 0.1, count))


def test_the_interval_has_the_ratio_of_the_medians() -> None:
    before, after = drawn(1), drawn(2, scale=1.5)
    found = ratio_interval(before, after, seed=0)
    assert found is not None
    low, high = found
    assert low < np.median(after) / np.median(before) < high
    assert low > 1.3


def test_equal_samples_and_seeds_give_equal_intervals() -> None:
    assert ratio_interval(drawn(1), drawn(2), seed=3) == ratio_interval(drawn(1), drawn(2), seed=3)
    assert ratio_interval(drawn(1), drawn(2), seed=3) != ratio_interval(drawn(1), drawn(2), seed=4)


def test_constant_latencies_have_an_interval_of_width_0() -> None:
    assert ratio_interval([2.0] * 9, [3.0] * 7, seed=0) == (1.5, 1.5)


@pytest.mark.parametrize("few", [(LEAST_SAMPLES - 1, LEAST_SAMPLES), (LEAST_SAMPLES, LEAST_SAMPLES - 1)])
def test_too_few_samples_give_no_interval(few: tuple[int, int]) -> None:
    assert ratio_interval([1.0] * few[0], [1.0] * few[1], seed=0) is None
    assert ratio_interval([1.0] * LEAST_SAMPLES, [1.0] * LEAST_SAMPLES, seed=0) is not None


def test_resampling_in_parts_gives_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ratio_interval(drawn(1), drawn(2), seed=0)
    monkeypatch.setattr(results, "_AT_ONCE", 30 * 777)
    parts = ratio_interval(drawn(1), drawn(2), seed=0)
    assert whole is not None
    assert parts is not None
    assert parts == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("count", [10, 50])
def test_the_interval_covers_the_true_ratio_as_often_as_stated(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESAMPLES", 500)
    hits = 0
    for seed in range(200):
        found = ratio_interval(drawn(2 * seed, count), drawn(2 * seed + 1, count), seed=seed)
        assert found is not None
        hits += found[0] <= 1.0 <= found[1]
    assert hits >= 0.92 * 200
