"""Which extra runs on which GPU under which driver, and which packages the extras install."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path

import fake_cupy
import pytest
import standin_driver
from host_cuda import needs_compiler

from iosched.runtime.cuda.gpu import extras
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.cuda.gpu.extras import (
    EXTRAS,
    DriverGpu,
    DriverInfo,
    extra_for,
    extra_with,
    query_driver,
    version_text,
    way_to_run,
)

OFFERED = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("driver", "capabilities", "name"),
    [
        (13000, [90], "cuda"),
        (13020, [75], "cuda"),
        (13000, [70], "cuda12"),  # CUDA 13 dropped it, whatever the driver
        (12090, [120], "cuda12"),  # the driver is too old for CUDA 13
        (12000, [70], "cuda12"),
        (11080, [90], None),
        (13000, [61], None),
        (13000, [90, 70], "cuda12"),
        (13000, [90, 61], "cuda"),
        (12000, [90, 61], "cuda12"),
        (0, [], None),
    ],
)
def test_the_newest_extra_for_most_gpus_is_chosen(driver: int, capabilities: Sequence[int], name: str | None) -> None:
    found = extra_for(driver, capabilities)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("driver", "capability", "way"),
    [
        (13000, 70, "in a separate environment, run in a clone of iosched: pip install '.[cuda12]'"),
        (13000, 90, "in a separate environment, run in a clone of iosched: pip install '.[cuda]'"),
        (11040, 90, "update the NVIDIA driver to 580 or newer"),
        (11040, 70, "update the NVIDIA driver to 525 or newer, up to 580"),  # 590 no longer supports V100
        (13000, 61, "compute capability 6.1 is not supported: iosched needs 7.0 or newer"),
        (11040, 37, "compute capability 3.7 is not supported: iosched needs 7.0 or newer"),
    ],
)
def test_the_way_to_run_on_a_gpu_is_named(driver: int, capability: int, way: str) -> None:
    assert way_to_run(driver, capability) == way


def test_the_extra_of_a_version_of_cuda() -> None:
    assert [extra_with(version) for version in (13000, 12090)] == list(EXTRAS)
    assert extra_with(14000) is None
    assert version_text(12090) == "12.9"


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_an_extra_installs_its_packages_and_none_for_another_cuda(extra) -> None:
    brought = {requirement.split("[")[0].split(">")[0] for requirement in OFFERED[extra.name]}
    assert {*extra.packages} <= brought
    assert not any(f"{suffix}{other.cuda}" in name for other in EXTRAS if other != extra for name in brought
                   for suffix in ("cu", "cuda"))  # fmt: skip


def test_the_cudnn_for_a_v100_has_code_for_it() -> None:
    """9.11 has none, and yet builds plans for it."""
    assert "nvidia-cudnn-cu12>=9.10,<9.11" in OFFERED["cuda12"]


V100 = "Tesla V100-SXM2-16GB:70"


@needs_compiler
def test_gpus_are_seen_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch, V100, "NVIDIA B200:100", cuda=12080)
    assert query_driver() == DriverInfo(12080, (DriverGpu("Tesla V100-SXM2-16GB", 70), DriverGpu("NVIDIA B200", 100)))


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.none(monkeypatch)
    assert query_driver() == DriverInfo(problem="no NVIDIA driver found")


def test_a_library_that_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_text("this is no library")
    monkeypatch.setattr(extras, "LIBRARY", str(path))
    found = query_driver()
    assert (found.cuda, found.gpus) == (0, ())
    assert "cannot load the driver" in found.problem
    assert str(path) in found.problem


@needs_compiler
def test_a_driver_library_that_is_not_nvidias_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    other = standin_driver.compiled('extern "C" int cuDriverGetVersion(int *v) { *v = 12000; return 0; }')
    monkeypatch.setattr(extras, "LIBRARY", str(other))
    assert "not NVIDIA's" in query_driver().problem
    assert "cuInit" in query_driver().problem


@needs_compiler
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (100, "finds no GPU: none is attached, or CUDA_VISIBLE_DEVICES hides it"),
        (
            803,
            "cannot start the driver: system has unsupported display driver / cuda driver combination (status 803",
        ),
        (999, "cannot start the driver: no reason given (status 999 of cuInit)"),
    ],
)
def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch, status: int, words: str) -> None:
    standin_driver.install(monkeypatch, V100, status=status)
    found = query_driver()
    assert (found.cuda, found.gpus) == (13000, ())
    assert words in found.problem


@needs_compiler
def test_a_driver_that_starts_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch)
    assert (query_driver().cuda, query_driver().gpus) == (13000, ())
    assert "finds no GPU" in query_driver().problem


def test_the_way_to_run_is_named_for_one_gpu_or_for_most_of_them() -> None:
    seen = DriverInfo(13000, (DriverGpu("V100", 70), DriverGpu("H100", 90)))
    assert seen.way_to_run().endswith("pip install '.[cuda12]'")  # which runs on both
    assert seen.way_to_run(0).endswith("pip install '.[cuda12]'")
    assert seen.way_to_run(1).endswith("pip install '.[cuda]'")
    assert DriverInfo(13000, (DriverGpu("K80", 37),)).way_to_run().endswith("iosched needs 7.0 or newer")
    unseen = DriverInfo(problem="no NVIDIA driver found")
    assert unseen.way_to_run().endswith(
        "to use a GPU (no NVIDIA driver found), run in a clone of iosched: pip install '.[cuda]'"
    )
    assert unseen.way_to_run(1) == unseen.way_to_run()


@needs_compiler
@pytest.mark.parametrize(
    ("driver", "given", "found"), [(12000, None, "LAZY"), (12000, "EAGER", "EAGER"), (12020, None, None)]
)
def test_kernels_are_loaded_on_first_use_by_old_drivers_too(
    monkeypatch: pytest.MonkeyPatch, driver: int, given: str | None, found: str | None
) -> None:
    standin_driver.install(monkeypatch, "NVIDIA L4:89", cuda=driver)
    fake_cupy.install(monkeypatch, driver=driver, version=12000)
    for start in (extras.query_driver, CupyDriver):
        monkeypatch.setenv("CUDA_MODULE_LOADING", given or "")
        if given is None:
            monkeypatch.delenv("CUDA_MODULE_LOADING")
        start()
        assert os.environ.get("CUDA_MODULE_LOADING") == found
