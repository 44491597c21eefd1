"""`doctor`: a report on this machine, whatever is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iosched.cli import doctor as doctor_command
from iosched.cli.common import site_settings as site_files
from iosched.jobs.doctor import diagnosis, installation
from iosched.jobs.doctor.diagnosis import CHECKS, Diagnosis, Section
from iosched.profiler.devices.facts import Finding

REMARK = Finding("it is slow", "the cores", "wait", is_broken=False)
BROKEN = Finding("it is \x1b[31mgone", "a library", "bring it back")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch):
    """The machine has these findings."""

    def arrange(*findings: Finding) -> None:
        section = Section({"cores": 2}, (("cores", "2"),), findings)
        monkeypatch.setattr(diagnosis, "diagnose", lambda asked: Diagnosis({"machine": section}))

    return arrange


def test_all_is_well(invoke, scripted) -> None:
    scripted()
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["machine", "  cores  2", "No problems found."]


def test_remarks_are_lines_and_no_failure(invoke, scripted) -> None:
    scripted(REMARK)
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "note: the cores: it is slow. Fix: wait." in result.stdout.splitlines()


def test_a_broken_part_is_printed_and_exits_with_1(invoke, scripted) -> None:
    scripted(REMARK, BROKEN)
    result = invoke("doctor")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if "Fix: " in line]
    assert lines[0].startswith("problem: a library: it is ")
    assert "\x1b" not in result.stdout
    assert len(lines) == 2
    assert "No problems" not in result.stdout
    assert result.stderr == "Error: 1 problem found: see the report\n"


def test_json_has_the_findings_and_the_facts_of_each_check(invoke, scripted) -> None:
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
    monkeypatch.setattr(installation, "why_not", lambda module: None)
    found = json.loads(invoke("doctor", "--json").stdout)
    assert set(found) == {"healthy", "findings", *CHECKS, "provenance"}
    assert {each["package"] for each in found["libraries"]["packages"]} > {"numpy", "onnx", "onnxruntime", "ray"}
    assert found["devices"]["devices"][0]["kind"] == "cpu"
    assert found["database"]["exists"] is False
    assert "check of" not in invoke("doctor").stdout


def test_the_named_database_is_checked(invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "why_not", lambda module: None)
    (workdir / "bad.sqlite").write_bytes(b"no database" * 500)
    result = invoke("doctor", "--profile-db", "bad.sqlite")
    assert result.exit_code == 1
    assert "problem: bad.sqlite: bad.sqlite is damaged" in result.stdout


@pytest.mark.parametrize(
    "broken", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("numpy", "onnx")), "onnxruntime"]
)
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


@pytest.fixture
def settings_section(invoke, monkeypatch: pytest.MonkeyPatch):
    """The settings section of doctor's report, with the exit code."""

    def told() -> dict[str, object]:
        monkeypatch.setattr(diagnosis.diagnose, "__kwdefaults__", {"checks": ("settings",)})
        result = invoke("doctor", "--json")
        return {"exit": result.exit_code, **json.loads(result.stdout)}

    return told


def test_it_reports_which_settings_files_are_read(
    settings_section, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = workdir / "a"
    inner.mkdir()
    (workdir / "iosched.toml").write_text('device = "v100"\n')
    (inner / "pyproject.toml").write_text("[tool.iosched]\nthreads = 2\n")
    own = Path(os.environ["XDG_CONFIG_HOME"]) / "iosched" / "config.toml"
    monkeypatch.setattr(site_files, "user_file", lambda: own)
    monkeypatch.setattr(doctor_command, "user_file", lambda: own)
    monkeypatch.chdir(inner)
    monkeypatch.setenv("IOSCHED_DEVICE", "cpu")
    found = settings_section()
    files = found["settings"]["files"]
    assert [(Path(each["path"]).name, each["counts"], each["values"]) for each in files] == [
        ("pyproject.toml", True, {"threads": 2}),
        ("iosched.toml", False, {"device": "v100"}),
    ]
    assert found["settings"]["set"]["device"] == {"value": "cpu", "from": "IOSCHED_DEVICE"}
    assert found["settings"]["set"]["threads"]["value"] == 2
    assert (found["exit"], found["healthy"]) == (0, True)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("threads = ", "not valid TOML"),
        ('cluster = "auto"', "not read from a file"),
        ("thread = 2", "did you mean threads"),
    ],
)
def test_an_invalid_settings_file_is_a_finding(settings_section, workdir: Path, text: str, what: str) -> None:
    (workdir / "iosched.toml").write_text(text)
    found = settings_section()
    (finding,) = found["findings"]
    assert (found["exit"], finding["check"], finding["broken"]) == (1, "settings", True)
    assert what in finding["what"]
    assert finding["where"].endswith("iosched.toml")


def test_a_finding_names_its_file_once_and_ends_with_one_full_stop(invoke, settings_section, workdir: Path) -> None:
    (workdir / "iosched.toml").write_text("thread = 2")
    settings_section()
    (line,) = [line for line in invoke("doctor").stdout.splitlines() if "Fix: " in line]
    assert line.count("iosched.toml") == 1
    assert line.endswith("unknown setting 'thread': did you mean threads? Fix: correct the file.")
