"""What holds for all tests."""

from __future__ import annotations

import pytest

from iosched.profiler import target


@pytest.fixture(autouse=True)
def _no_gpu_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device auto` means the CPU: tests of GPUs name theirs."""
    monkeypatch.setattr(target, "attached_names", lambda: ())
