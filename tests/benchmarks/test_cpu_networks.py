"""Networks are measured in calls that resume where the previous one ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def networks(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("cpu_networks")


class Scripted:
    """Replaces searching and measuring: records the steps and advances a clock."""

    def __init__(self, search_s: float) -> None:
        self.done: list[str] = []
        self.now_s, self.search_s = 0.0, search_s

    def searched(self, model: object, options: object, budget_s: float, path: Path, call: int) -> Mapping[str, object]:
        seconds = min(self.search_s, budget_s)
        self.now_s += seconds
        self.search_s -= seconds
        self.done.append(f"search {call}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        search = {"seconds": seconds, "budget_s": budget_s, "calls": call}
        return {"command": "", "shipped": "iosched", "search": search, "samples_us": {}, "median_us": {}}

    def measured(self, model: object, document: object, entry: Any, threads: object, budget: Any, **_: object) -> Any:
        self.now_s += 100
        self.done.append(f"{budget.rounds} rounds")
        samples = [*entry["samples_us"].get("onnxruntime", ()), *[1.0] * budget.rounds]
        return {**entry, "samples_us": {"onnxruntime": samples}, "median_us": {"onnxruntime": 1.0}}


@pytest.fixture
def call(networks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Calls the script for SqueezeNet for five minutes, and returns its steps."""
    monkeypatch.setattr(networks, "cpu_model", lambda source, batch_size: None)
    monkeypatch.setattr(networks.ScheduleDocument, "from_json", lambda text: None)

    def run(scripted: Scripted, *more: str) -> list[str]:
        monkeypatch.setattr(networks.time, "monotonic", lambda: scripted.now_s)
        monkeypatch.setattr(networks, "searched", scripted.searched)
        monkeypatch.setattr(networks, "measured", scripted.measured)
        scripted.done.clear()
        words = ["--networks", "squeezenet", "--batch-sizes", "1", "-o", str(tmp_path / "r.json")]
        networks.main([*words, "--work", str(tmp_path / "work"), *more])
        return list(scripted.done)

    return run


def test_rounds_are_added_call_by_call_until_there_are_enough(call: Callable[[Scripted], list[str]]) -> None:
    scripted = Scripted(search_s=120)
    assert call(scripted) == ["search 1", "7 rounds", "7 rounds"]
    assert call(scripted) == ["7 rounds"]
    assert call(scripted) == []


def test_an_interrupted_search_resumes_in_the_next_call(call: Callable[[Scripted], list[str]]) -> None:
    scripted = Scripted(search_s=400)
    assert call(scripted) == ["search 1"]
    assert call(scripted) == ["search 2", "7 rounds", "7 rounds"]


def test_a_search_that_used_its_budget_is_not_resumed(call: Callable[..., list[str]]) -> None:
    scripted = Scripted(search_s=400)
    assert call(scripted, "--budget", "100") == ["search 1", "7 rounds", "7 rounds"]
    assert scripted.search_s == 300
    assert call(scripted, "--budget", "100") == ["7 rounds"]


def test_a_search_that_used_less_than_its_budget_is_resumed(call: Callable[..., list[str]]) -> None:
    scripted = Scripted(search_s=400)
    assert call(scripted, "--budget", "600") == ["search 1"]
    assert call(scripted, "--budget", "600")[0] == "search 2"


def test_an_endless_search_ends_after_three_calls(call: Callable[[Scripted], list[str]]) -> None:
    scripted = Scripted(search_s=1e9)
    assert [call(scripted)[0] for _ in range(3)] == ["search 1", "search 2", "search 3"]
    assert call(scripted)[0] == "7 rounds"


def test_results_of_another_product_are_not_resumed(
    call: Callable[[Scripted], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted = Scripted(search_s=120)
    call(scripted)
    known = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**known, "digest": "another"}))
    with pytest.raises(SystemExit):
        call(scripted)
    assert "another product" in capsys.readouterr().err
