"""On macOS and Windows everything imports, what only plans works, and what runs models says that it needs Linux.

Neither system is here: a process without what they lack stands for them, see `other_system`.
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
    """What the process said: `broken` modules, and `calls` by the words of the command; and the system's `name`."""
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


def test_what_only_reads_and_plans_works(other: dict[str, Any]) -> None:
    worked = [words for words, (code, *_) in other["calls"].items() if code == 0]
    assert [words.split()[0] for words in worked] == [
        *("--help", "--version", "zoo", "devices", "inspect", "optimize", "show", "explain", "diff", "rank", "profile")
    ]


def test_what_runs_models_is_refused_with_the_way_out(other: dict[str, Any]) -> None:
    refused = {words: said for words, said in other["calls"].items() if said[0] == 3}
    assert [words.split()[0] for words in refused] == ["optimize", "run", "bench", "explore"]
    for _, out, err in refused.values():
        assert out == ""
        assert f"Linux, and this is {other['name']}: simulate a GPU instead (--device v100)" in err.splitlines()[-1]


def test_doctor_says_what_is_the_matter_and_fails_at_nothing(other: dict[str, Any]) -> None:
    code, out, _ = other["calls"]["doctor"]
    assert code == 1
    assert f"problem: system: models run only on Linux, and this is {other['name']}" in out
    assert "it failed" not in out
