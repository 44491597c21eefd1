"""Which extra runs on which GPU under which driver, and that the extras bring what is said of them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from iosched.runtime.cuda.gpu.extras import EXTRAS, extra_for, extra_with, version_text, way_to_run

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
def test_the_newest_that_runs_on_most_gpus(driver: int, capabilities: Sequence[int], name: str | None) -> None:
    found = extra_for(driver, capabilities)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("driver", "capability", "way"),
    [
        (13000, 70, "in an environment of its own, run in a clone of iosched: pip install '.[cuda12]'"),
        (13000, 90, "in an environment of its own, run in a clone of iosched: pip install '.[cuda]'"),
        (11040, 90, "update NVIDIA's driver to 580 or newer"),
        (11040, 70, "update NVIDIA's driver to 525 or newer, up to 580"),  # 590 knows no V100 any more
        (13000, 61, "models do not run on GPUs of compute capability 6.1: they need 7.0 or newer"),
        (11040, 37, "models do not run on GPUs of compute capability 3.7: they need 7.0 or newer"),
    ],
)
def test_what_to_do_to_run_on_a_gpu(driver: int, capability: int, way: str) -> None:
    assert way_to_run(driver, capability) == way


def test_the_extra_of_a_version_of_cuda() -> None:
    assert [extra_with(version) for version in (13000, 12090)] == list(EXTRAS)
    assert extra_with(14000) is None
    assert version_text(12090) == "12.9"


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_an_extra_brings_its_packages_and_none_of_another_cuda(extra) -> None:
    brought = {requirement.split("[")[0].split(">")[0] for requirement in OFFERED[extra.name]}
    assert {*extra.packages} <= brought
    assert not any(f"{suffix}{other.cuda}" in name for other in EXTRAS if other != extra for name in brought
                   for suffix in ("cu", "cuda"))  # fmt: skip


def test_the_cudnn_for_a_v100_has_code_for_it() -> None:
    """9.11 has none, and yet builds plans for it."""
    assert "nvidia-cudnn-cu12>=9.10,<9.11" in OFFERED["cuda12"]
