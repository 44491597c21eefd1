"""These tests need a GPU; without one they are skipped, with the reason."""

from __future__ import annotations

import pytest
from gpu_kernels import gpu_or_skip

from iosched.profiler.devices.cuda.attached import AttachedGpu


@pytest.fixture(scope="session")
def gpu() -> AttachedGpu:
    return gpu_or_skip()


@pytest.fixture(autouse=True)
def _has_the_precision(request: pytest.FixtureRequest) -> None:
    asked = getattr(request.node, "callspec", None)
    if "gpu" not in request.fixturenames or asked is None or asked.params.get("precision") != "tf32":
        return
    if not request.getfixturevalue("gpu").driver.gpu.has_tf32:
        pytest.skip("this GPU has no tf32")
