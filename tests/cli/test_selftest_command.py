"""`devices --selftest`: a line with the result, the checks above it, and an exit code that scripts can rely on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import fake_cupy
import pytest

from iosched.jobs import selftest as selftest_module
from iosched.models.errors import DeviceLostError, ExecutionError, MismatchError
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.runtime.reference import SelfCheck


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The device has a check of each of these errors, between two that pass."""

    def arrange(*errors: Exception) -> None:
        def failing(error: Exception) -> Callable[[], NoReturn]:
            def run() -> NoReturn:
                raise error

            return run

        wrong = [SelfCheck("kernels", f"Wrong{number}", failing(error)) for number, error in enumerate(errors)]
        checks = (SelfCheck("compiler", "all", lambda: "exact"), *wrong, SelfCheck("model", "small", lambda: "exact"))
        monkeypatch.setattr(CpuDevice, "checks", lambda self: checks)
        monkeypatch.setattr(selftest_module, "resolve", lambda device: CpuDevice())

    return arrange


def test_one_line_says_what_works(invoke, scripted) -> None:
    scripted()
    result = invoke("devices", "--selftest")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert "works" in line
    assert "compiler 1/1, model 1/1" in line
    assert [text.split(",")[0] for text in result.stderr.splitlines()] == [
        "  compiler: all ... ok",
        "  model: small ... ok",
    ]


def test_it_can_be_silent(invoke, scripted) -> None:
    scripted(ExecutionError("broke"))
    result = invoke("devices", "--selftest", "-q")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.splitlines() == ["Error: 1 of 3 checks failed; see docs/cuda.md for what to send"]


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([MismatchError("off")], 4),
        ([ExecutionError("broke")], 1),
        ([MismatchError("off"), ExecutionError("broke")], 1),
        ([DeviceLostError("gone")], 1),
        ([RuntimeError("a bug")], 1),
    ],
)
def test_the_exit_code_is_honest(invoke, scripted, errors: list[Exception], code: int) -> None:
    scripted(*errors)
    result = invoke("devices", "--selftest")
    assert result.exit_code == code
    assert "FAILED" in result.stdout
    assert "Wrong0" in result.stdout
    assert f"{len(errors)} of {len(errors) + 2} checks failed" in result.stderr
    assert "Traceback" not in result.stderr


def test_checks_after_a_lost_device_are_reported_as_not_tried(invoke, scripted) -> None:
    scripted(DeviceLostError("gone"))
    assert "model: small ... not tried" in invoke("devices", "--selftest").stderr


def test_tracebacks_are_shown_where_they_are_wanted(invoke, scripted) -> None:
    scripted(RuntimeError("a bug"))
    assert "RuntimeError: a bug" in invoke("devices", "--selftest", "--debug").stderr.split("Traceback", 1)[1]


def test_json(invoke, scripted) -> None:
    scripted(MismatchError("off by 7"))
    result = invoke("devices", "--selftest", "--json")
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert set(found) == {"device", "name", "passed", "summary", "seconds", "about", "checks"}
    assert (found["device"], found["passed"]) == ("cpu", False)
    assert "FAILED" in found["summary"]
    assert {"iosched", "python", "cores"} <= set(found["about"])
    assert [(each["part"], each["name"], each["outcome"], each["detail"]) for each in found["checks"]] == [
        ("compiler", "all", "passed", "exact"),
        ("kernels", "Wrong0", "failed", "off by 7"),
        ("model", "small", "passed", "exact"),
    ]
    assert all(set(each) == {"part", "name", "outcome", "detail", "seconds"} for each in found["checks"])


def arrange_no_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    fake_cupy.without_library_of_cudnn(monkeypatch)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda patch: patch.setitem(sys.modules, "cupy", None),
        lambda patch: fake_cupy.install(patch, status=35, driver=0),
        lambda patch: fake_cupy.install(patch, status=100),
        lambda patch: fake_cupy.install(patch, capabilities=((6, 0),)),
        arrange_no_cudnn,
    ],
    ids=["no CuPy", "no driver", "no GPU", "an old GPU", "no cuDNN"],
)
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_without_a_usable_gpu_it_fails_with_the_same_error_as_run(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch, arrange, words: tuple[str, ...]
) -> None:
    arrange(monkeypatch)
    said = complains(invoke("devices", "--selftest", *words), 3)
    assert said == complains(invoke("run", model, "--device", "cuda", "-q"), 3)


def test_device_is_an_option_of_the_selftest_only(invoke, complains) -> None:
    complains(invoke("devices", "--device", "cpu"), 2, "--selftest")
    complains(invoke("devices", "--selftest", "--device", "v100"), 3, "is not attached")
    complains(invoke("devices", "--selftest", "--device", "nope"), 2, "unknown device 'nope'")


def test_the_cpu(invoke) -> None:
    result = invoke("devices", "--selftest", "--device", "cpu")
    assert "model 1/1" in result.stdout
    assert "light_squeezenet ... ok" in result.stderr
