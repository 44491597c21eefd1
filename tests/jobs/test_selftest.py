"""A self-test runs every check, names those that fail, and stops only if the device is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import pytest
from scripted import fire

from iosched.jobs import selftest as selftest_module
from iosched.jobs.selftest import CheckResult, SelfTest, selftest
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, MismatchError, UsageError
from iosched.runtime.compare import Check
from iosched.runtime.cpu import self_checks
from iosched.runtime.device import DeviceInfo
from iosched.runtime.openvino import library
from iosched.runtime.reference import Reference, SelfCheck, agrees_with_onnxruntime, passed, worst


def failing(error: Exception) -> Callable[[], NoReturn]:
    def run() -> NoReturn:
        raise error

    return run


def works() -> str:
    return "exact"


_ABOUT = {"capability": "9.0", "driver": "580.65"}


@dataclass(frozen=True)
class Scripted:
    """A device with the checks that it is given."""

    runs: tuple[Callable[[], str], ...]
    info: DeviceInfo = DeviceInfo("cuda:0", "cuda", "Scripted 1000", "measured", about=_ABOUT)

    def checks(self) -> tuple[SelfCheck, ...]:
        return tuple(SelfCheck("kernels", f"K{number}", run) for number, run in enumerate(self.runs))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SelfTest]:
    """Runs the self-test of a device with the given checks."""

    def run(*runs: Callable[[], str], watcher: selftest_module.Watcher | None = None) -> SelfTest:
        monkeypatch.setattr(selftest_module, "resolve", lambda device: Scripted(runs))
        return selftest("cuda", watcher)

    return run


def outcomes(found: SelfTest) -> list[str]:
    return [each.outcome for each in found.results]


def test_the_summary_of_a_passed_test_is_one_line(tried) -> None:
    found = tried(works, works)
    assert found.passed
    assert found.failure is None
    assert "\n" not in found.summary
    assert found.summary.startswith("Scripted 1000 works in 0 s: kernels 2/2; iosched ")
    assert "capability 9.0, driver 580.65" in found.summary
    assert "onnxruntime 1." in found.summary


def test_a_failed_check_does_not_stop_the_others(tried) -> None:
    found = tried(failing(ExecutionError("it broke\nand more")), works, failing(ZeroDivisionError("division")), works)
    assert outcomes(found) == ["failed", "passed", "failed", "passed"]
    assert [each.detail for each in found.failed] == ["it broke", "ZeroDivisionError: division"]
    assert "FAILED in 0 s: kernels 2/4; failed: kernels: K0 (it broke), kernels: K2; iosched" in found.summary


def test_many_failures_are_counted(tried) -> None:
    found = tried(*[failing(DeviceError("none"))] * 7)
    assert "kernels: K0 (none), kernels: K1, kernels: K2, kernels: K3 and 3 more;" in found.summary


def test_no_check_runs_after_the_device_is_lost(tried) -> None:
    called: list[str] = []
    lost = failing(DeviceLostError("the GPU stopped working: 700\nsee the log"))
    found = tried(works, lost, lambda: called.append("called") or "", works)
    assert called == []
    assert outcomes(found) == ["passed", "failed", "not tried", "not tried"]
    assert "failed: kernels: K1 (the GPU stopped working: 700)" in found.summary
    assert "not tried because the device was lost: 2" in found.summary
    assert isinstance(found.failure, ExecutionError)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([MismatchError("off")], MismatchError),
        ([MismatchError("off"), MismatchError("off")], MismatchError),
        ([MismatchError("off"), DeviceError("no engine")], ExecutionError),
        ([DeviceError("no engine")], ExecutionError),
        ([KeyError("a bug")], ExecutionError),
    ],
)
def test_the_error_is_a_mismatch_if_only_numbers_differ(tried, errors: list[Exception], kind: type[Exception]) -> None:
    found = tried(works, *map(failing, errors))
    assert type(found.failure) is kind
    assert f"{len(errors)} of {len(errors) + 1} checks failed" in str(found.failure)


def test_a_check_is_named_before_it_begins(tried) -> None:
    seen: list[str] = []

    class Watcher:
        def began(self, check: SelfCheck) -> None:
            seen.append(f"began {check.name}")

        def ended(self, result: CheckResult) -> None:
            seen.append(f"ended {result.name}")

    def run() -> str:
        seen.append("runs")
        return ""

    tried(run, failing(DeviceLostError("gone")), run, watcher=Watcher())
    assert seen == ["began K0", "runs", "ended K0", "began K1", "ended K1", "ended K2"]


def test_long_reasons_are_cut(tried) -> None:
    (result,) = tried(failing(ExecutionError("long " * 1000))).results
    assert len(result.detail) <= 300
    assert result.detail.endswith("...")


def test_an_interrupt_is_not_a_failed_check(tried) -> None:
    with pytest.raises(KeyboardInterrupt):
        tried(failing(KeyboardInterrupt()), works)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_cpu_is_tested_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = selftest("cpu")
    titles = ["executor: compiled", "model: light_squeezenet", "openvino: light_squeezenet"]
    assert [each.title for each in found.results] == titles
    assert [each.outcome for each in found.results[1:]] == ["passed", "passed"]
    assert "cores" in found.results[1].detail
    monkeypatch.setattr("iosched.runtime.cpu.library.available", lambda: False)
    monkeypatch.setattr("iosched.runtime.cpu.library.missing", lambda: "no compiler")
    (executor,) = selftest("cpu").failed
    assert executor.title == "executor: compiled"
    assert "no compiler" in executor.detail


def test_openvino_is_tested_if_installed_and_optional_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    openvino = self_checks.cpu_checks()[2]
    if library.available():
        assert "relative error" in openvino.run()
    monkeypatch.setattr(library, "installed_version", lambda: None)
    library.missing.cache_clear()
    assert "not installed" in openvino.run()
    library.missing.cache_clear()


def test_devices_that_are_not_attached_cannot_be_tested() -> None:
    with pytest.raises(DeviceError, match=r"V100.* is not attached"):
        selftest("v100")
    with pytest.raises(UsageError, match="unknown device"):
        selftest("v101")


def test_the_worst_of_several_comparisons_is_the_failed_one() -> None:
    right, wrong, better = Check(1e-6, 1e-6, True), Check(1e-7, 1e-7, False, ("a", "b")), Check(0.0, 0.0, True)
    assert worst([right, wrong, better]) is wrong
    assert worst([better, right]) is right
    assert passed(better) == "exact"
    assert "1.0e-06" in passed(right)
    with pytest.raises(MismatchError, match="a; b"):
        passed(wrong)


def test_each_run_is_compared_with_onnxruntime() -> None:
    model = fire()
    with Reference(model) as reference:
        runs = iter([reference.run, reference.run, lambda inputs: {"gc": reference.run(inputs)["gc"] + 1}])
        assert agrees_with_onnxruntime(model, lambda inputs: next(runs)(inputs), runs=2) == "exact"
        with pytest.raises(MismatchError, match="gc"):
            agrees_with_onnxruntime(model, lambda inputs: next(runs)(inputs))
