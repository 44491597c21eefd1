"""These tests need a GPU; without one they are skipped, with the reason."""

from __future__ import annotations

import pytest
from attached import gpu_or_skip

from iosched.profiler.devices.cuda.attached import AttachedGpu


@pytest.fixture(scope="session")
def gpu() -> AttachedGpu:
    return gpu_or_skip()
