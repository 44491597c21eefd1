"""`examples/plan.c` compiles as its first lines say, against the header only, and runs a plan file."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from example_scripts import EXAMPLES
from plan_files import LANES, dynamic, plan_of
from small_models import branches, loaded

import iosched
from iosched.runtime.cpu import library

pytestmark = [
    pytest.mark.skipif(not library.available(), reason=f"no compiled executor: {library.missing()}"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    shutil.copy(EXAMPLES / "plan.c", folder)
    command = re.search(r"cc -I.*", (EXAMPLES / "plan.c").read_text())
    assert command is not None
    words = shlex.split(command[0].replace("$folder", iosched.include_path()))
    strict = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-pedantic", "-Werror")
    subprocess.run([*words, *strict], cwd=folder, check=True)
    return folder / "plan"


def run(program: Path, *words: str | Path | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


def test_it_runs_a_plan(program: Path, tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    plan.write_bytes(plan_of([loaded(dynamic())]))
    done = run(program, library.onnxruntime_path(), plan)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        f"1 programs on {LANES} lanes; the first:",
        "input x of type 1: 4x8",
        "input unused of type 1: 2",
        "output found of type 7: known after a run",
        "output c of type 7: 3",
    ]
    assert lines[7].endswith(" ms a run")
    assert lines[8:] == ["found:", "c:", "y: 1 1 1 1", "same: 0 0 0 0"]


def test_it_prints_errors(program: Path, tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    content = plan_of([loaded(branches())])
    plan.write_bytes(content[:-1] + b"\xff")
    done = run(program, library.onnxruntime_path(), plan)
    assert (done.returncode, done.stderr) == (1, f"open: {plan} is damaged\n")
    assert run(program, "none.so", plan).stderr.startswith("none.so: cannot open shared object file")
    assert run(program).returncode == 2
