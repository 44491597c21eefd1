"""Packages that pip would install for an extra are checked against its promises, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement

from iosched.runtime.cuda.gpu.extras import EXTRAS

ROOT = Path(__file__).parents[2]
FINE = {
    "cuda-pathfinder": "1.9.0",
    "cupy-cuda12x": "14.2.0",
    "numpy": "2.4.6",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "nvidia-cudnn-frontend": "1.28.0",
    "nvidia-ml-py": "13.615.71",
}

# Messages of pip.
OUT_OF_REACH = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by
'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection>: Failed to establish a new connection')': /numpy/
ERROR: Could not find a version that satisfies the requirement numpy>=1.26 (from versions: none)
ERROR: No matching distribution found for numpy>=1.26
"""
NO_SUCH = """\
WARNING: Location 'file:///wheels/nvidia-cudnn-cu12/' is ignored: it is neither a file nor a directory.
ERROR: Could not find a version that satisfies the requirement nvidia-cudnn-cu12<5 (from versions: 8.8.0.121, 8.8.1.3)
ERROR: No matching distribution found for nvidia-cudnn-cu12<5
"""
CONFLICT = """\
ERROR: Cannot install cupy-cuda12x and numpy<1 because these package versions have conflicting dependencies.
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/
"""
CRASH = "Traceback (most recent call last):\n  ...\nOSError: [Errno 28] No space left on device\n"


@pytest.fixture
def extras(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("extras_resolved")


@pytest.fixture
def promise(extras: ModuleType) -> object:
    return extras.Promise(12, (70,), {}, {"nvidia-cudnn-cu12": "<9.11"})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"numpy": "3.0", "cupy-cuda12x": "99.0"}, []),
        ({"nvidia-cudnn-cu12": "9.11.0.98"}, ["nvidia-cudnn-cu12 9.11.0.98 is not <9.11"]),
        ({"nvidia-cudnn-cu12": None}, ["nvidia-cudnn-cu12 (none) is not <9.11"]),
        ({"nvidia-cufft-cu13": "12.5"}, ["nvidia-cufft-cu13 is not for CUDA 12"]),
        ({"nvidia-cublas": "13.10"}, ["nvidia-cublas is not for CUDA 12"]),
        ({"cupy-cuda13x": "14.2.0"}, ["cupy-cuda13x is not for CUDA 12"]),
    ],
)
def test_broken_promises_are_reported_as_faults(
    extras: ModuleType, promise: object, changed: Mapping[str, str | None], words: list[str]
) -> None:
    versions = {name: version for name, version in {**FINE, **changed}.items() if version}
    assert extras.broken(promise, versions) == words
    line, is_fault = extras.verdict("cuda12", promise, extras.Resolved(versions), FINE)
    assert is_fault == bool(words)
    assert all(each in line for each in words)


def test_packages_of_cuda_13_have_different_names(extras: ModuleType) -> None:
    promise = extras.Promise(13, (75,), {})
    assert not extras.broken(promise, {"nvidia-cublas": "13.10", "nvidia-cudnn-cu13": "9.28", "cupy-cuda13x": "14.2"})
    assert extras.broken(promise, {"nvidia-cublas-cu12": "12.9"}) == ["nvidia-cublas-cu12 is not for CUDA 13"]


def test_changed_versions_are_reported_but_are_no_fault(extras: ModuleType, promise: object) -> None:
    now = {**FINE, "numpy": "2.5.0", "extra": "1"}
    del now["cuda-pathfinder"]
    assert extras.verdict("cuda12", promise, extras.Resolved(now), FINE) == (
        "extra cuda12: moved since .ci/extras tried it: cuda-pathfinder 1.9.0 -> (none), extra (none) -> 1,"
        " numpy 2.4.6 -> 2.5.0",
        False,
    )
    same = extras.verdict("cuda12", promise, extras.Resolved(FINE), FINE)
    assert same == ("extra cuda12: as .ci/extras tried it", False)


@pytest.mark.parametrize(
    ("said", "is_fault"), [(OUT_OF_REACH, False), (NO_SUCH, True), (CONFLICT, True), (CRASH, False)]
)
def test_only_missing_and_conflicting_packages_are_a_fault(extras: ModuleType, said: str, is_fault: bool) -> None:
    found = extras.refused(said)
    assert found.refusal
    assert found.is_fault is is_fault


def _answering(monkeypatch: pytest.MonkeyPatch, extras: ModuleType, version: str, code: int, said: str) -> list[str]:
    """Replaces pip; returns the words of its calls."""
    asked: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        if "--version" in command:
            return SimpleNamespace(stdout=f"pip {version} from /somewhere (python 3.12)\n")
        asked.extend(command)
        return SimpleNamespace(returncode=code, stdout=said, stderr=said)

    monkeypatch.setattr(extras.subprocess, "run", run)
    return asked


def test_an_old_pip_is_not_used(extras: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _answering(monkeypatch, extras, "23.2.1", 0, "{}")
    found = extras.ask_pip(["numpy"])
    assert "pip 23.2.1 would download everything" in found.refusal
    assert not found.is_fault
    assert not asked


def test_pip_resolves_versions_without_installing(extras: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    report = '{"install": [{"metadata": {"name": "Ml_Dtypes", "version": "0.6"}}]}'
    asked = _answering(monkeypatch, extras, "26.3", 0, report)
    assert extras.ask_pip(["numpy>=1"]).versions == {"ml-dtypes": "0.6"}
    assert {"--dry-run", "--ignore-installed", "numpy>=1"} <= set(asked)


def test_a_timeout_of_pip_is_no_fault(extras: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        if "--version" in command:
            return SimpleNamespace(stdout="pip 26.3 from /somewhere\n")
        raise subprocess.TimeoutExpired(command, extras.SECONDS)

    monkeypatch.setattr(extras.subprocess, "run", run)
    assert not extras.ask_pip(["numpy"]).is_fault


def test_extras_have_a_line_each_and_set_the_status(extras: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"cuda": extras.refused(OUT_OF_REACH), "cuda12": extras.Resolved({**FINE, "nvidia-cudnn-cu12": "9.12"})}
    assert extras.main([], answers.__getitem__) == 1
    cuda, cuda12 = capsys.readouterr().out.splitlines()
    assert cuda.startswith("extra cuda: not known")
    assert "nvidia-cudnn-cu12 9.12 is not <9.11" in cuda12
    assert extras.main(["cuda"], answers.__getitem__) == 0


def test_promises_match_the_extras_of_the_program(extras: ModuleType) -> None:
    promised = extras.promises()
    assert set(promised) == {extra.name for extra in EXTRAS}
    for extra in EXTRAS:
        promise = promised[extra.name]
        assert promise.cuda == extra.cuda
        assert promise.capabilities[0] == extra.least_capability
        named = {Requirement(each).name for each in extras.requirements(extra.name)}
        assert set(extra.packages) <= named
        assert all((ROOT / f"benchmarks/devices/{gpu}.json").exists() for gpu in promise.gpus)
        assert list(promise.capabilities) == sorted(promise.capabilities)
