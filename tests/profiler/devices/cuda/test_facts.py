"""Problems that prevent the use of attached GPUs, as `iosched doctor` reports them."""

from __future__ import annotations

import pytest
import standin_driver

from iosched.profiler.devices.cuda import facts
from iosched.profiler.devices.cuda.facts import GpuProbe, cuda_facts
from iosched.profiler.devices.facts import Finding
from iosched.runtime.cuda.gpu.extras import EXTRAS

H100 = "NVIDIA H100"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """The findings on a machine with these GPUs and packages, with this result of the probe."""

    def look(names: list[str], packages: tuple[str, ...], probed: GpuProbe | None = None) -> tuple[Finding, ...]:
        standin_driver.none(monkeypatch)
        monkeypatch.setattr(facts, "gpu_names", lambda: names)
        monkeypatch.setattr(facts, "package_version", lambda package: "1" if package in packages else None)
        monkeypatch.setattr(facts, "find_spec", lambda module: object() if packages else None)
        monkeypatch.setattr(facts, "probe", lambda: probed or GpuProbe())
        return cuda_facts().findings

    return look


def test_without_a_gpu_there_are_no_findings(found) -> None:
    assert found([], ()) == ()


def test_a_gpu_without_any_package_is_only_a_remark(found) -> None:
    (finding,) = found([H100], ())
    assert finding.where == H100
    assert "pip install '.[cuda]'" in finding.way
    assert not finding.is_broken


def test_a_gpu_with_only_some_of_the_packages_is_broken(found) -> None:
    (finding,) = found([H100], EXTRAS[0].packages[:2])
    assert EXTRAS[0].packages[2] in finding.what
    assert finding.is_broken


def test_with_all_packages_a_problem_is_broken_and_a_remark_is_not(found) -> None:
    probed = GpuProbe(problems=("the driver is too old",), remarks=("no CUDA provider",))
    problem, remark = found([H100], EXTRAS[0].packages, probed)
    assert (problem.what, problem.is_broken) == ("the driver is too old", True)
    assert (remark.what, remark.is_broken) == ("no CUDA provider", False)


def test_a_gpu_that_is_too_old_is_only_a_remark(found) -> None:
    (finding,) = found(["Tesla P100-SXM2-16GB"], ())
    assert "do not run on this GPU" in finding.what
    assert not finding.is_broken
