"""The results on damaged files and failing machines keep the promises of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize(("kind", "cases"), [("models", 10_000), ("schedules", 2_000), ("stores", 500)])
def test_all_fuzz_cases_ran_without_a_fault(kind: str, cases: int) -> None:
    found = results("fuzz")["kinds"][kind]
    assert found["done"] >= cases
    assert found["faults"] == []


def test_injected_faults_broke_no_rule() -> None:
    kinds = results("faults")["kinds"]
    assert all(kinds[kind]["faults"] == {} for kind in ("memory", "disk", "threads", "clocks"))
    assert kinds["disk"]["mounted"]["faults"] == {}
    said = {**kinds["kills"]["counts"], **kinds["amid"]["counts"], **kinds["writers"]}
    assert not [what for what in said if any(word in what for word in ("DAMAGED", "LOST", "HALF", "FAILED"))]
    assert kinds["amid"]["counts"]["killed"] == kinds["amid"]["kills"]
    assert kinds["kills"]["kills"] >= 200
    assert kinds["amid"]["kills"] >= 200


def test_memory_was_flat_and_results_were_correct() -> None:
    soak = results("soak")
    assert (soak["runs"]["number"], soak["loads"]["number"]) == (100_000, 1_000)
    assert soak["runs"]["wrong"] == soak["at_once"]["wrong"] == 0
    assert soak["runs"]["grown_kib_after_a_tenth"] < 1024


def test_every_case_that_onnxruntime_runs_is_accounted_for() -> None:
    suite = results("onnx-backend")
    assert sum(suite["here"].values()) == suite["onnxruntime_runs"]
    assert sum(suite["left_out"].values()) == suite["cases"] - suite["onnxruntime_runs"]
    assert suite["differs"] == {}
