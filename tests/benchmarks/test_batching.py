"""Networks of a family share what the benchmark states, and a case becomes a row of the table."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from iosched.jobs.batching.model_clusters import composed
from iosched.models.composition.compose import compose
from iosched.models.load import load_model
from iosched.models.model import Model


@pytest.fixture
def batching(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("batching")


def loaded(batching: ModuleType, family: str, count: int = 2) -> dict[str, Model]:
    protos = enumerate(batching.networks(family, count))
    return {f"m{seed}": load_model(proto.SerializeToString()) for seed, proto in protos}


@pytest.mark.slow
def test_heads_have_one_backbone_and_sampled_networks_share_nothing(batching: ModuleType) -> None:
    heads = loaded(batching, "heads", 3)
    nodes = len(heads["m0"].proto.graph.node)
    assert compose(heads, ["input"]).shared == 2 * (nodes - 1)
    assert compose(loaded(batching, "mnasnet-32")).shared == 0


def test_a_case_is_a_row_of_the_table(batching: ModuleType) -> None:
    samples = {"serial": [9000.0] * 8, "packed": [6000.0] * 8, "mixed": [4000.0] * 8}
    cluster = {"models": 2, "shipped": "mixed", "samples_us": samples}
    found = {
        "clusters": [cluster],
        "weights_nbytes": [8e6, 4e6],
        "calls": [{"seconds": 6.0, "budget_s": 9.0}, {"seconds": 6.3}],
    }
    row = batching.row("heads x 2", found)
    assert row[:6] == ("heads x 2", "9.00 ms", "6.00 ms", "", "4.00 ms", "mixed")
    assert row[6:] == ("1.500 (1.500 to 1.500)", "2.250 (2.250 to 2.250)", "12", "4.0 MB of 8.0 MB")
    several = batching.row("heads x 2", {**found, "clusters": [cluster, {**cluster, "shipped": "packed"}]})
    assert several[1:8] == ("18.00 ms", "12.00 ms", "", "8.00 ms", "mixed, packed", "", "")


def test_the_summary_covers_models_of_unequal_weights(batching: ModuleType) -> None:
    """In one case, the mix has speedup 2 over side by side and 4 over serial; the other case ships side by side."""

    def case(**samples_us: float) -> dict[str, object]:
        shipped = min(samples_us, key=lambda way: samples_us[way])
        samples = {way: [latency_us] * 8 for way, latency_us in samples_us.items()}
        return {"clusters": [{"models": 2, "shipped": shipped, "samples_us": samples}]}

    twice, packed = case(serial=8.0, packed=4.0, mixed=2.0), case(serial=9.0, packed=1.0, mixed=3.0)
    cases = {"squeezenet x 2": packed, "squeezenet x 4": twice, "heads x 4": case(serial=100.0, mixed=1.0)}
    assert batching.summary(cases) == (
        "For models of unequal weights, the geometric mean over the better is 1.414 (1.414 to 1.414) in 2 cases. "
        "From 4 models on, it is 4.000 (4.000 to 4.000) in 1 cases over serial."
    )


def test_the_interval_of_a_mean_assumes_independent_logarithms(batching: ModuleType) -> None:
    found = batching.mean_text([(1.0, 1.0, 1.0), (2.0, 2.0 / math.e, 2.0 * math.e)])
    mean = math.sqrt(2)
    assert found == f"{mean:.3f} ({mean / math.sqrt(math.e):.3f} to {mean * math.sqrt(math.e):.3f}) in 2 cases"


def test_calls_resume_where_the_previous_one_ended(
    batching: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next call resumes a case that ran out of time."""
    now_s, left_s = 0.0, {"heads x 2": 400.0, "heads x 4": 90.0}
    done: list[str] = []

    def case(
        family: str, count: int, options: object, deadline: float, before: dict[str, list[object]] | None
    ) -> object:
        nonlocal now_s
        name = f"{family} x {count}"
        budget_s = deadline - now_s
        seconds = min(left_s[name], budget_s)
        now_s += seconds
        left_s[name] -= seconds
        done.append(name)
        cluster = {"models": count, "shipped": "serial", "samples_us": {"serial": [1.0] * 8}}
        calls = [
            *(before["calls"] if before else ()),
            {"seconds": seconds, "budget_s": budget_s, "cut_short": left_s[name] > 0},
        ]
        return {"clusters": [cluster], "weights_nbytes": [8, 4], "calls": calls}

    def call(*more: str) -> tuple[list[str], str]:
        done.clear()
        monkeypatch.setattr(sys, "argv", ["batching.py", *words, *more])
        batching.main()
        return list(done), capsys.readouterr().out

    monkeypatch.setattr(batching.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(batching, "case", case)
    words = ["--families", "heads", "--counts", "2,4", "-o", str(tmp_path / "r.json")]
    assert call("--list") == ([], "heads x 2\nheads x 4\n")
    assert call()[0] == ["heads x 2"]
    assert call()[0] == ["heads x 2", "heads x 4"]
    assert call("--list") == ([], "")


@pytest.mark.slow
def test_planned_batching_is_predicted_to_be_no_slower(batching: ModuleType) -> None:
    cluster = composed(loaded(batching, "mnasnet-32"))
    found = {policy: batching.planned(cluster, policy, "p100") for policy in batching.POLICIES}
    total_us = {policy: each["latency_us"].total() for policy, each in found.items()}
    assert total_us["dpbat"] <= min(total_us["serial"], total_us["greedy"]) * (1 + 1e-9)
    assert found["dpbat"]["kernels"] < found["serial"]["kernels"]
    for policy, each in found.items():  # a plan saves what its prices predict
        assert total_us["serial"] - total_us[policy] == pytest.approx(each["worth_us"], rel=0.02), policy


def test_models_side_by_side_share_the_simulated_device(batching: ModuleType) -> None:
    """They take much less time than one after another, and no less than the longer one alone."""
    both = loaded(batching, "mnasnet-32")
    cluster = composed(both)
    alone_us = [batching.types_us("p100", model).total() for model in both.values()]
    assert max(alone_us) <= batching.packed(cluster, "p100")["latency_us"] < 0.9 * sum(alone_us)
