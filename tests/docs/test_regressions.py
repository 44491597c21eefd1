"""The script in `docs/regressions.md` runs unchanged, and prints the verdicts of the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml
from small_models import branches

PAGE = Path(__file__).parents[2] / "docs" / "regressions.md"
(SCRIPT,) = (each for each in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) if "elif" in each)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an optimized model, its `bench` results, and a command `iosched` whose `bench` repeats them."""
    folder = tmp_path_factory.mktemp("job")
    command = folder / "iosched"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m iosched "$@"\n')
    command.chmod(0o755)
    onnx.save(branches(), folder / "model.onnx")
    run(folder, "iosched optimize model.onnx --strategy greedy -o model.iosched.onnx -q")
    run(folder, "iosched bench model.iosched.onnx --with iosched --with onnxruntime --rounds 10 --json > measured.json")
    found = json.loads((folder / "measured.json").read_text())
    for samples in found["samples_us"].values():  # steady under any load of this machine
        samples[:] = [100.0 + index % 3 for index in range(len(samples))]
    (folder / "measured.json").write_text(json.dumps(found))
    again = 'if [ "$1" = bench ]; then exec cat measured.json; fi'
    command.write_text(command.read_text().replace("exec", f"{again}\nexec", 1))
    return folder


def run(folder: Path, script: str) -> str:
    here = os.pathsep.join(each for each in sys.path if each)
    environ = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": here,
        "IOSCHED_PROFILE_DB": str(folder / "profile.sqlite"),
    }
    done = subprocess.run(["sh", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "words"), [(100.0, "as fast as before"), (0.01, "slower than before"), (None, "cannot be compared")]
)
def test_the_script_prints_one_of_three_verdicts(folder: Path, factor: float | None, words: str) -> None:
    """The baseline is the output of `bench`, with the row `iosched` a hundred times slower or faster."""
    found = json.loads((folder / "measured.json").read_text())
    if factor is None:
        found["model"] = "another model"
    else:
        found["samples_us"]["iosched"] = [factor * each for each in found["samples_us"]["iosched"]]
    (folder / "baseline.json").write_text(json.dumps(found))
    assert run(folder, SCRIPT).splitlines()[-1] == words


def test_the_github_job_has_the_gate_of_the_page() -> None:
    file = PAGE.parents[1] / "examples" / "pipeline" / "github-actions.yml"
    steps = [step.get("run", "") for step in yaml.safe_load(file.read_text())["jobs"]["latency"]["steps"]]
    (gate,) = re.findall(r"iosched diff .*(?=; then)", SCRIPT)
    assert sum(gate in step for step in steps) == 1
