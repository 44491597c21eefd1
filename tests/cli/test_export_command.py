"""`iosched export`: a folder with a plan, and whether the plan is used on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from shipped import optimized_file
from small_models import branches

from iosched.runtime.cpu import library

Invoke = Callable[..., Result]

pytestmark = pytest.mark.skipif(not library.available(), reason="the compiled executor is not built")


@pytest.fixture
def optimized(workdir: Path) -> Path:
    return optimized_file(workdir / "m.iosched.onnx", branches())


@pytest.fixture
def plan(optimized: Path, invoke: Invoke) -> Path:
    assert invoke("export", optimized.name, "--threads", 2).exit_code == 0
    return Path("m.plan")


def test_the_folder_is_named_after_the_model(optimized: Path, invoke: Invoke) -> None:
    result = invoke("export", optimized.name, "--threads", 2)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "exported for 2 threads"
    assert {path.name for path in Path("m.plan").iterdir()} == {"m.onnx", "m.plan"}


def test_an_exported_model_runs_by_its_plan(plan: Path, invoke: Invoke) -> None:
    for model in (plan, plan / "m.onnx"):
        result = invoke("run", model, "--check", "--strict-plan", "--threads", 2)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("iosched, 2 threads, plan file")


def test_the_check_says_that_a_plan_is_used(plan: Path, invoke: Invoke) -> None:
    assert invoke("export", "--check", plan).exit_code == 0
    found = json.loads(invoke("export", "--check", plan, "--json").stdout)
    assert found == {"model": "m.plan/m.onnx", "plan": "m.plan/m.plan", "used": True, "reason": None}


def test_the_check_says_why_a_plan_is_not_used(plan: Path, invoke: Invoke) -> None:
    content = bytearray((plan / "m.plan").read_bytes())
    content[-1] ^= 1
    (plan / "m.plan").write_bytes(content)
    result = invoke("export", "--check", plan, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["used"] is False
    assert result.stderr == "Error: m.plan/m.plan is not used here: m.plan/m.plan is damaged\n"


def test_a_plan_that_does_not_fit_is_a_warning_and_the_model_runs(plan: Path, invoke: Invoke) -> None:
    result = invoke("run", plan, "--threads", 1)
    assert result.exit_code == 0
    assert "The plan of m.onnx is not used: the plan is for 2 threads, not 1.\n" in result.stderr
    assert invoke("run", plan, "--threads", 1, "--strict-plan").exit_code == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [(("m.iosched.onnx", "-o", "m.plan"), 2), (("m.iosched.onnx", "-o", "m.plan", "--overwrite"), 0),
     (("m.iosched.onnx", "--check", "--overwrite"), 2), (("-",), 2), (("none.onnx", "-o", "new"), 2),
     (("m.iosched.onnx", "--check"), 2)],
)  # fmt: skip
def test_exit_codes(plan: Path, invoke: Invoke, words: tuple[str, ...], code: int) -> None:
    assert invoke("export", *words).exit_code == code


def test_a_strict_run_of_a_model_without_plan_fails(optimized: Path, invoke: Invoke) -> None:
    result = invoke("run", optimized.name, "--strict-plan")
    assert (result.exit_code, "write one with 'iosched export'" in result.stderr) == (2, True)
