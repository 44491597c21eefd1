"""`optimize` writes a file that runs even if a plan of iosched fails; `--strict` turns that into an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import Result
from faulty_plans import FAULTS, fail_where, falsify, has, is_side_by_side
from scripted import LATENCIES_US, fire_proto, script_models, script_stages
from small_models import branches

from iosched.scheduler.document import ScheduleDocument

Invoke = Callable[..., Result]
ON_CPU = ("--device", "cpu", "--threads", 2)
REPORT = "Please report it with the output of 'iosched doctor'"


@pytest.fixture
def fire(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`fire.onnx` in the working folder, for which the schedule found is the fastest."""
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    onnx.save(fire_proto(), "fire.onnx")
    return workdir / "fire.onnx"


def test_plain_onnxruntime_ships_if_our_plan_fails(invoke: Invoke, fire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_where(monkeypatch, has("gs"), KeyError(""))
    result = invoke("optimize", fire, *ON_CPU)
    assert result.exit_code == 0, result.stderr
    note = "Plain onnxruntime ships: iosched's own plan fails at Conv 'gs' (KeyError: '')."
    assert note in result.stderr
    assert REPORT in result.stderr
    assert "reference: iosched's own plan fails at Conv 'gs' (KeyError: ''): please report it" in result.stdout
    assert "not counted" in result.stdout
    run = invoke("run", "fire.iosched.onnx", "--against", fire, "--json")
    assert json.loads(run.stdout)["check"]["passed"]


def test_json_and_the_file_say_why(invoke: Invoke, fire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_where(monkeypatch, has("gs"), KeyError(""))
    found = json.loads(invoke("optimize", fire, *ON_CPU, "--json").stdout)
    assert found["shipped"] == "reference"
    assert found["reason"] == "iosched's own plan fails at Conv 'gs' (KeyError: ''): please report it"
    assert any("Conv 'gs'" in note and REPORT in note for note in found["notes"])
    assert found["kernels"] == {"before": None, "after": None}
    assert ScheduleDocument.from_json(Path("fire.schedule.json").read_text()).runtime["reason"] == found["reason"]


def test_a_stage_that_fails_is_left_out_and_noted(invoke: Invoke, fire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_where(monkeypatch, is_side_by_side, FAULTS[0])
    result = invoke("optimize", fire, *ON_CPU, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["shipped"]) == (0, "iosched")
    assert "Skipped because it fails: the stage of Conv " in result.stderr
    assert any("HazardError: tasks clash" in note for note in found["notes"])


@pytest.mark.parametrize("where", [is_side_by_side, has("gs")], ids=["stage", "operator"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_strict_ends_with_the_error(
    where, fault: Exception, invoke: Invoke, fire: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, also if the error is about a graph that was derived: onnxruntime runs the model of the user."""
    fail_where(monkeypatch, where, fault)
    result = invoke("optimize", fire, *ON_CPU, "--strict")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: iosched's plan fails at Conv ")
    assert "This is a bug in iosched, not in the model." in result.stderr
    assert not Path("fire.iosched.onnx").exists()


def test_strict_ends_with_exit_code_4_if_outputs_differ(
    invoke: Invoke, fire: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falsify(monkeypatch, "gs")
    assert invoke("optimize", fire, *ON_CPU).exit_code == 0
    Path("fire.iosched.onnx").unlink()
    result = invoke("optimize", fire, *ON_CPU, "--strict")
    assert result.exit_code == 4
    assert "The first operator that differs is Conv 'gs'" in result.stderr
    assert not Path("fire.iosched.onnx").exists()


def test_a_failing_plan_is_replaced_for_each_batch_size(
    invoke: Invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    fail_where(monkeypatch, has("b"), KeyError(""))
    onnx.save(branches("n"), "dynamic.onnx")
    result = invoke("optimize", "dynamic.onnx", *ON_CPU, "--batch-sizes", "1,2", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [each["shipped"] for each in found["results"]] == ["reference", "reference"]
    assert all("please report it" in each["reason"] for each in found["results"])
    strict = invoke("optimize", "dynamic.onnx", *ON_CPU, "--batch-sizes", "1,2", "--strict")
    assert strict.exit_code == 1
    assert "iosched's plan fails at" in strict.stderr


def test_a_bad_file_is_still_wrong_usage(invoke: Invoke, workdir: Path) -> None:
    Path("bad.onnx").write_bytes(b"no model")
    assert invoke("optimize", "bad.onnx", *ON_CPU).exit_code == 2
    assert invoke("optimize", "bad.onnx", *ON_CPU, "--strict").exit_code == 2
