"""`doctor`: a report on this machine that is made whatever is wrong there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iosched.jobs.doctor import diagnosis, libraries
from iosched.jobs.doctor.diagnosis import CHECKS, Diagnosis
from iosched.jobs.doctor.section import Section
from iosched.profiler.devices.finding import Finding

REMARK = Finding("it is slow", "the cores", "wait", is_broken=False)
BROKEN = Finding("it is \x1b[31mgone", "a library", "bring it back")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch):
    """The machine has these findings."""

    def arrange(*findings: Finding) -> None:
        section = Section({"cores": 2}, (("cores", "2"),), findings)
        monkeypatch.setattr(diagnosis, "diagnose", lambda profile_db: Diagnosis({"machine": section}))

    return arrange


def test_all_is_well(invoke, scripted) -> None:
    scripted()
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["machine", "  cores  2", "Nothing is broken here."]


def test_remarks_are_lines_and_no_failure(invoke, scripted) -> None:
    scripted(REMARK)
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "remark: the cores: it is slow. Way out: wait." in result.stdout.splitlines()


def test_what_is_broken_is_a_line_and_exit_code_1(invoke, scripted) -> None:
    scripted(REMARK, BROKEN)
    result = invoke("doctor")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if "Way out" in line]
    assert lines[0].startswith("broken: a library: it is ")
    assert "\x1b" not in result.stdout
    assert len(lines) == 2
    assert "Nothing is broken" not in result.stdout
    assert result.stderr == "Error: 1 thing is broken here; see what was found\n"


def test_json_has_the_findings_and_what_each_check_found(invoke, scripted) -> None:
    scripted(REMARK, BROKEN)
    result = invoke("doctor", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["healthy"] is False
    assert found["machine"] == {"cores": 2}
    assert found["findings"][1] == {
        "check": "machine",
        "broken": False,
        "what": "it is slow",
        "where": "the cores",
        "way": "wait",
    }


def test_this_machine(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "why_not", lambda module: None)
    found = json.loads(invoke("doctor", "--json").stdout)
    assert set(found) == {"healthy", "findings", *CHECKS, "provenance"}
    assert {each["package"] for each in found["libraries"]["packages"]} > {"numpy", "onnx", "onnxruntime", "ray"}
    assert found["devices"]["devices"][0]["kind"] == "cpu"
    assert found["database"]["exists"] is False
    assert "check of" not in invoke("doctor").stdout


def test_the_database_that_is_named_is_looked_at(invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "why_not", lambda module: None)
    (workdir / "bad.sqlite").write_bytes(b"no database" * 500)
    result = invoke("doctor", "--profile-db", "bad.sqlite")
    assert result.exit_code == 1
    assert "broken: bad.sqlite: bad.sqlite is damaged" in result.stdout


@pytest.mark.parametrize("broken", ["numpy", "onnx", "onnxruntime"])
def test_it_runs_where_a_library_does_not_load(tmp_path: Path, broken: str) -> None:
    (tmp_path / f"{broken}.py").write_text("raise ImportError('undefined symbol: blas')")
    here = [each for each in sys.path if each]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *here])}
    command = [sys.executable, "-m", "iosched", "doctor", "--json", "--profile-db", ":memory:"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    wheres = [each["where"] for each in json.loads(done.stdout)["findings"] if "undefined symbol" in each["what"]]
    assert any(where.startswith(f"{broken} ") for where in wheres)
