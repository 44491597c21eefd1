"""Policies follow from measured latencies, and are compared with serving without one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import branches, chain, data

import iosched
from iosched.jobs.load_test import policy_search as job
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.load_test import LoadTest
from iosched.jobs.load_test.policy_search import cores_by_load, search_policy
from iosched.jobs.load_test.sender import Answer
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.jobs.serving.policy_file import Measured, PolicyPair, hash_of
from iosched.models.errors import UsageError

RATES = {"a": 30.0, "b": 10.0}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    onnx.save(branches(), tmp_path / "a.onnx")
    onnx.save(chain(), tmp_path / "b.onnx")
    return {"a": tmp_path / "a.onnx", "b": tmp_path / "b.onnx"}


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], None]:
    """Replaces measuring of pairs, and of latencies under load, in milliseconds by alternative."""

    def replaced(latency_ms: dict[str, float]) -> None:
        def rows(self: LoadTest, left_s: float) -> tuple[LoadRow, ...]:
            for name in self.deadlines_s:
                assert all(each.submit(name).result() for each in self.opened.values())
            return tuple(
                LoadRow(name, model, 5.0, self.deadlines_s[model] * 1e6, 2.0, (Answer(model, ms * 1e3, 0.0),) * 40)
                for model in self.deadlines_s
                for name, ms in latency_ms.items()
            )

        monkeypatch.setattr(LoadTest, "rows", rows)
        monkeypatch.setattr(job, "_ROUNDS", 2)
        monkeypatch.setattr(job, "_PAIR_S", 0.0)

    return replaced


def test_few_requests_get_the_cores_that_are_fastest_and_many_get_one() -> None:
    assert cores_by_load({4: 30.0, 2: 55.0, 1: 100.0}, 1.0, 4)[0][1] == 4
    assert cores_by_load({4: 30.0, 2: 55.0, 1: 100.0}, 1.0, 4)[-1] == (1.0, 1)
    assert cores_by_load({2: 120.0, 1: 100.0}, 1.0, 2) == ((1.0, 1),)
    assert cores_by_load({1: 100.0}, 1.0, 1) == ((1.0, 1),)


def test_slowdown_by_others_favours_more_cores_per_request() -> None:
    latencies = {2: 52.0, 1: 100.0}
    alone = [load for load, count in cores_by_load(latencies, 1.0, 2) if count == 2]
    disturbed = [load for load, count in cores_by_load(latencies, 1.5, 2) if count == 2]
    assert max(disturbed) > max(alone)


@given(st.integers(0, 3), st.lists(st.floats(1.0, 2.0), min_size=3, max_size=3), st.floats(1.0, 3.0))
def test_more_load_never_means_more_cores_for_any_request(
    doublings: int, speedups: list[float], slowdown: float
) -> None:
    cores, latency_us = 2**doublings, {1: 100.0}
    for index, speedup in enumerate(sorted(speedups, reverse=True)[:doublings]):
        latency_us[2 ** (index + 1)] = latency_us[2**index] / speedup
    policy = ModelPolicy(cores_by_load(latency_us, slowdown, cores))
    counts = [policy.most_cores(load / 100, cores) for load in range(101)]
    assert counts == sorted(counts, reverse=True)
    assert set(counts) <= latency_us.keys()


def test_the_slowdown_of_a_model_is_weighted_by_the_rates_of_others() -> None:
    known = {("a", "a"): 1.2, ("a", "b"): 2.0, ("b", "a"): 1.1, ("b", "b"): 1.3}
    pairs = [PolicyPair(*models, Measured(value, 1.0, 3.0)) for models, value in known.items()]
    assert job._mean_slowdown("a", pairs, RATES) == pytest.approx((30 * 1.2 + 10 * 2.0) / 40)
    assert job._mean_slowdown("b", pairs, RATES) == pytest.approx((30 * 1.1 + 10 * 1.3) / 40)
    assert job._mean_slowdown("a", [], RATES) == 1.0


def test_a_policy_has_all_plans_pairs_and_models(paths: dict[str, Path], sends, tmp_path: Path) -> None:
    before = {name: path.read_bytes() for name, path in paths.items()}
    sends({"policy": 1.0, "no policy": 1.0})
    found = search_policy(paths, RATES, p99_s={"a": 0.05, "b": 1.0}, folder=tmp_path, threads=2).file
    assert {name: path.read_bytes() for name, path in paths.items()} == before
    assert {name: each.path for name, each in found.models.items()} == {"a": "a.onnx", "b": "b.onnx"}
    assert [found.models[name].sha256 for name in paths] == [hash_of(path) for path in paths.values()]
    assert list(found.models["a"].latency_us) == [2, 1]
    assert [(each.model, each.other) for each in found.pairs] == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]
    measured = [*found.models["a"].latency_us.values(), *(each.slowdown for each in found.pairs)]
    assert all(0 < each.low <= each.value <= each.high for each in measured)
    assert [found.models[name].p99_us for name in paths] == [5e4, 1e6]
    assert found.machine.cores == 2
    assert found.models["a"].cores


def test_serving_without_a_policy_is_kept_where_it_is_better(paths: dict[str, Path], sends, tmp_path: Path) -> None:
    sends({"policy": 60.0, "no policy": 40.0})
    result = search_policy(paths, RATES, p99_s={"a": 0.05, "b": 0.05}, folder=tmp_path, threads=1)
    assert (result.chosen, result.file.policy) == ("no policy", ServingPolicy({"a": ModelPolicy(), "b": ModelPolicy()}))
    assert result.notes[0].endswith("the default rule was better: the file leaves the cores to it.")
    sends({"policy": 30.0, "no policy": 40.0})
    result = search_policy(paths, RATES, p99_s={"a": 0.05, "b": 0.05}, folder=tmp_path, threads=1)
    assert result.chosen == "policy"
    assert result.file.pairs == ()
    few = ("40 requests of a are too few for p99.", "40 requests of b are too few for p99.")
    assert result.notes[0].startswith("The file has the measured policy")
    assert result.notes[1:] == few


@pytest.mark.parametrize(
    ("count", "notes"),
    [
        (400, ["p99 of a is above 1.0 ms."]),
        (40, ["40 requests of a are too few for p99.", "p90 of a is above 1.0 ms."]),
        (10, ["10 requests of a are too few for p99.", "p50 of a is above 1.0 ms."]),
        (4, ["4 requests of a are too few for p99."]),
    ],
)
@pytest.mark.parametrize("latency_us", [2e3, math.inf])
def test_a_p99_that_is_too_high_is_noted(count: int, latency_us: float, notes: list[str]) -> None:
    slow, fast = Answer("a", latency_us, 0.0), Answer("a", 5e2, 0.0)
    rows = (
        LoadRow("policy", "a", 5.0, 1e3, 2.0, (slow,) * count),
        LoadRow("no policy", "a", 5.0, 1e3, 2.0, (fast,) * 400),
    )
    assert list(job.PolicySearchResult(None, rows, "policy").notes[1:]) == notes  # type: ignore[arg-type]


def test_pairs_are_measured_on_any_number_of_cores_that_two_requests_can_divide(
    paths: dict[str, Path], sends, tmp_path: Path
) -> None:
    sends({"policy": 1.0, "no policy": 1.0})
    found = search_policy(paths, RATES, folder=tmp_path, threads=5).file
    assert list(found.models["a"].latency_us) == [5, 1]
    assert len(found.pairs) == 4


def test_a_model_for_several_batch_sizes_gets_requests_of_the_smallest(sends, tmp_path: Path) -> None:
    iosched.optimize_batches(data(branches("n")), (2, 3), device="v100").save(tmp_path / "m.onnx")
    sends({"policy": 1.0, "no policy": 1.0})
    found = search_policy({"m": tmp_path / "m.onnx"}, {"m": 5.0}, folder=tmp_path, threads=1).file
    assert list(found.models["m"].latency_us) == [1]


def test_models_outside_the_folder_are_refused_before_anything_is_measured(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(UsageError, match="has all models in it"):
        search_policy(paths, RATES, folder=tmp_path / "sub")


def test_p99_of_a_queue_grows_with_the_load_until_it_is_infinite() -> None:
    found = [job._p99_us({1: 100.0}, 1, 1.0, 2, load / 10) for load in range(1, 11)]
    assert found == sorted(found)
    assert found[0] == pytest.approx(100.0, rel=0.5)
    assert found[-1] == math.inf
