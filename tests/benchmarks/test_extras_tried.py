"""Findings of `.ci/extras` are checked against the promises and its previous record."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from host_cuda import needs_compiler

ROOT = Path(__file__).parents[2]


@pytest.fixture
def extras(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("extras_tried")


@pytest.fixture
def promise(extras: ModuleType) -> Any:
    return extras.Promise(12, (70, 90), {"v100": ("fp32",)}, {"nvidia-cudnn-cu12": "<9.11"})


@pytest.fixture
def tried(extras: ModuleType) -> Any:
    both = extras.DeviceCode({70: 2, 90: 2}, {})
    return extras.Tried(
        versions={"nvidia-cudnn-cu12": "9.10.2.21"},
        code={"libcudnn_ops.so.9": both, "libcublas.so.12": both, "libonnxruntime_providers_cuda.so": both},
        compiled=extras.Passed(4, ()),
        desk=extras.Passed(100, ()),
        plans=(extras.Plans("v100", "fp32", 146, 21, 5),),
    )


def test_an_extra_that_keeps_its_promises_has_no_faults(extras: ModuleType, promise: Any, tried: Any) -> None:
    assert extras.faults(promise, tried, tried.plans) == []
    assert extras.faults(promise, tried, ()) == []


def test_every_broken_promise_is_reported(extras: ModuleType, promise: Any, tried: Any) -> None:
    newer = extras.DeviceCode({75: 2, 90: 2}, {})
    worse = replace(
        tried,
        versions={"nvidia-cudnn-cu12": "9.11.0.98"},
        code={**tried.code, "libcudnn_ops.so.9": newer, "libonnxruntime_providers_cuda.so": newer},
        compiled=extras.Passed(4, ("test_sources_compile[70-float16]: failure",)),
        desk=extras.Passed(100, ("test_a_plan: skipped",)),
        plans=(replace(tried.plans[0], copying=6),),
        unbuilt=("plans for h100",),
    )
    assert extras.faults(promise, worse, tried.plans) == [
        "nvidia-cudnn-cu12 9.11.0.98 is not <9.11",
        "libcudnn_ops.so.9 has no code for 7.0",
        "not compiled: test_sources_compile[70-float16]: failure",
        "not passed: test_a_plan: skipped",
        "not built: plans for h100",
        "v100 fp32: copying plans for 6 of 146 graphs, before for 5 of 146",
    ]
    assert "note: libonnxruntime_providers_cuda.so has no code for 7.0" in extras.report(promise, worse, tried.plans)


@pytest.mark.parametrize(
    ("graphs", "generic", "copying", "grown"),
    [
        (146, 21, 5, []),
        (146, 22, 5, ["generic"]),
        (146, 20, 6, ["copying"]),
        (292, 42, 10, []),
        (100, 21, 5, ["generic", "copying"]),
    ],
)
def test_a_larger_share_of_slow_plans_is_a_fault(
    extras: ModuleType, promise: Any, tried: Any, graphs: int, generic: int, copying: int, grown: list[str]
) -> None:
    now = replace(tried, plans=(extras.Plans("v100", "fp32", graphs, generic, copying),))
    found = extras.faults(promise, now, tried.plans)
    assert [each.split()[2] for each in found] == grown


def test_plans_in_the_preferred_layout_are_counted_by_precision(extras: ModuleType) -> None:
    rows = [
        {"precision": precision, "taken_copies": copies, "first_copies": "generic", "preferred": preferred}
        for precision, copies, preferred in (
            ("fp32", "generic", True),
            ("fp32", "generic", False),
            ("fp32", "nothing", True),
            ("fp16", "tensors", True),
            ("fp16", "slices", True),
            ("fp16", "tensors", False),
        )
    ]
    assert extras.plans_of(rows, "h100") == [
        extras.Plans("h100", "fp32", 2, generic=1, copying=0),
        extras.Plans("h100", "fp16", 2, generic=0, copying=1),
    ]


def test_failed_and_skipped_tests_are_problems(extras: ModuleType) -> None:
    text = """<testsuites><testsuite>
        <testcase name="a"/><testcase name="b"><skipped message="no NVRTC&#10;here"/></testcase>
        <testcase name="c"><failure message="assert 2 == 3"/></testcase></testsuite></testsuites>"""
    found = extras.passed(ET.ElementTree(ET.fromstring(text)))
    assert found.tests == 3
    assert [each.split(":")[0] for each in found.problems] == ["b", "c"]
    assert "no NVRTC" in found.problems[0]
    assert extras.passed(ET.ElementTree(ET.fromstring("<testsuites/>"))).problems


def test_versions_cover_exactly_the_packages_that_requirements_install(
    extras: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asks = {
        "base": ("leaf", "fast_one; extra == 'fast'", "elsewhere; sys_platform == 'nowhere'"),
        "fast_one": ("leaf>=1", "base[fast]"),
        "leaf": (),
        "stranger": (),
    }
    for name, needs in asks.items():
        lines = [f"Name: {name}", "Version: 1.5", *(f"Requires-Dist: {need}" for need in needs)]
        (tmp_path / f"{name}-1.5.dist-info").mkdir()
        (tmp_path / f"{name}-1.5.dist-info/METADATA").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert extras.installed(["base"]) == {"base": "1.5", "leaf": "1.5"}
    assert extras.installed(["base", "Base[fast]>=1"]) == {"base": "1.5", "fast-one": "1.5", "leaf": "1.5"}


def test_recorded_results_can_be_read_back(
    extras: ModuleType, tried: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "TRIED", tmp_path / "extras.json")
    monkeypatch.setattr(extras, "_tried", lambda extra, promise: tried)
    for extra in ("cuda", "cuda12"):
        extras.main([extra, "--record"])
    both = json.loads(extras.TRIED.read_text())
    record = both["cuda12"]
    assert record == both["cuda"]
    assert [extras.Plans(**each) for each in record["plans"]] == list(tried.plans)
    assert record["code"]["libcudnn_ops.so.9"] == {"machine": [70, 90], "ptx": []}


@pytest.mark.parametrize("extra", ["cuda", "cuda12"])
def test_the_committed_record_keeps_the_promises(extras: ModuleType, extra: str) -> None:
    promise, record = extras.promises()[extra], json.loads(extras.TRIED.read_text())[extra]
    assert not extras.broken(promise, record["versions"])
    counted = [(each["gpu"], each["precision"]) for each in record["plans"]]
    assert counted == [(gpu, precision) for gpu, named in promise.gpus.items() for precision in named]
    assert record["compiled"] == 2 * len(promise.capabilities)


@needs_compiler
def test_the_stand_in_driver_reports_no_gpu(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    source = ROOT / "benchmarks/devices/standin_driver.c"
    subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    driver, version, text = ctypes.CDLL(os.fspath(library)), ctypes.c_int(), ctypes.c_char_p()
    assert driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value >= 13000
    assert driver.cuInit(0) == 100
    assert driver.cuGetErrorName(100, ctypes.byref(text)) == 0
    assert text.value == b"CUDA_ERROR_NO_DEVICE"
