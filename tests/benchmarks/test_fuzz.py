"""The first cases of the fuzzer, and a few faults of each kind: no command does worse than refuse them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def results(tmp_path: Path, name: str, *words: str) -> Any:
    """Results of a script, run in a separate process: it forks, and this one has threads of onnxruntime."""
    path = tmp_path / "results.json"
    environment = {**os.environ, "IOSCHED_PROFILE_DB": ":memory:"}
    command = [sys.executable, str(FOLDER / name), *words, "--results", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(path.read_text())["kinds"]


@pytest.mark.slow
def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    found = results(tmp_path, "fuzz.py", "--portion", "0.03")
    assert {kind: each["done"] for kind, each in found.items()} == {"models": 300, "schedules": 60, "stores": 15}
    assert found["models"]["stages"]["graph"]["ran"] > 30  # or else most of the code is never reached
    for each in found.values():
        assert each["faults"] == []
        assert set(each["codes"]) <= {"0", "1", "2", "3", "4"}


@pytest.mark.slow
def test_faults_end_with_an_error_and_leave_no_partial_results(tmp_path: Path) -> None:
    found = results(tmp_path, "faults.py", "--quick")
    for kind in ("memory", "disk", "threads", "clocks"):
        assert found[kind]["faults"] == {}
    assert found["disk"]["codes"].get("1", 0) >= 3
    assert found["threads"]["codes"].get("1", 0) >= 1
    said = {**found["kills"]["counts"], **found["amid"]["counts"], **found["writers"]}
    assert not [what for what in said if any(word in what for word in ("DAMAGED", "LOST", "HALF", "FAILED"))]
    assert found["writers"]["files left over"] == 0


@pytest.fixture
def children(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("fuzz_children")


SOUND = {
    "code": 0, "stage": "ran", "stderr": "", "stdout_nbytes": 9, "cpu_s": 0.1, "wall_s": 0.2, "grown_nbytes": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"code": 2, "stderr": "a remark\nError: m.onnx: broken.\nMake it anew.\n"}, None),
        ({"code": -11}, "ended by signal 11"),
        ({"cpu_s": 11.0}, "hung"),
        ({"wall_s": 61.0}, "hung"),
        ({"code": 77, "stderr": "Error: what"}, "exit code 77"),
        ({"code": 1, "stderr": "Traceback (most recent call last):"}, "traceback"),
        ({"code": 1, "stderr": "Error: internal error: KeyError: 1"}, "internal error"),
        ({"code": 1, "stderr": "Error: iosched's plan fails.\nThis is a bug in iosched"}, "a plan of iosched fails"),
        ({"code": 2, "stderr": "a remark"}, "error without a word"),
        ({"code": 2, "stderr": "Error: x\n" * 6}, "error of many lines"),
        ({"grown_nbytes": 2**31}, "memory grew"),
        ({"forbidden": ("writes '/etc/passwd'",)}, "touched"),
    ],
)
def test_endings_are_classified_as_faults(children: ModuleType, changes: dict[str, Any], fault: str | None) -> None:
    found = children.Ending(**{**SOUND, **changes}).faults()
    assert (fault is None) == (found == [])
    assert fault is None or any(fault in each for each in found)


def test_a_case_depends_only_on_its_number(script: Callable[[str], ModuleType]) -> None:
    mutations = script("fuzz_mutations")
    data = bytes(range(256))
    drawn = [mutations.damaged_bytes(data, Random(f"18 models {number}")) for number in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
