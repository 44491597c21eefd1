"""On a GPU every check of the self-test passes."""

from __future__ import annotations

from iosched.jobs.selftest import selftest
from iosched.profiler.devices.cuda.attached import AttachedGpu


def test_all_checks_pass(gpu: AttachedGpu) -> None:
    found = selftest("cuda")
    assert found.name == gpu.name
    assert found.passed, (found.summary, [each.detail for each in found.failed])
