"""On macOS and Windows all modules import, planning works, and commands that run models report that they need Linux.

A process without the features that these systems do not have imitates them, see `other_system`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from small_models import branches

SCRIPT = Path(__file__).with_name("other_system.py")
NAMES = {"Darwin": "macOS", "Windows": "Windows"}


@pytest.fixture(scope="module", params=["Windows", pytest.param("Darwin", marks=pytest.mark.slow)])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of the process: `broken` modules, and `calls` by the words of the command; and the system's `name`."""
    folder = tmp_path_factory.mktemp(request.param)
    onnx.save(branches(), folder / "model.onnx")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), request.param, "model.onnx"],
        cwd=folder, env={**os.environ, "IOSCHED_PROFILE_DB": str(folder / "profile.sqlite")},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    said = json.loads(done.stdout)
    calls = {" ".join(words): (code, out, err) for words, code, out, err in said["calls"]}
    return {"broken": said["broken"], "calls": calls, "name": NAMES[request.param]}


def test_every_module_can_be_imported(other: dict[str, Any]) -> None:
    assert other["broken"] == []


def test_commands_that_only_read_and_plan_work(other: dict[str, Any]) -> None:
    worked = [words for words, (code, *_) in other["calls"].items() if code == 0]
    assert [words.split()[0] for words in worked] == [
        *("--help", "--version", "zoo", "devices", "inspect", "optimize", "show", "explain", "diff", "rank", "profile")
    ]


def test_commands_that_run_models_are_refused_with_an_alternative(other: dict[str, Any]) -> None:
    refused = {words: said for words, said in other["calls"].items() if said[0] == 3}
    assert [words.split()[0] for words in refused] == ["optimize", "run", "bench", "explore"]
    for _, out, err in refused.values():
        assert out == ""
        assert f"Linux, and this is {other['name']}: simulate a GPU instead (--device v100)" in err.splitlines()[-1]


def test_doctor_reports_the_problem_and_no_check_fails(other: dict[str, Any]) -> None:
    code, out, _ = other["calls"]["doctor"]
    assert code == 1
    assert f"problem: system: models run only on Linux, and this is {other['name']}" in out
    assert "it failed" not in out
