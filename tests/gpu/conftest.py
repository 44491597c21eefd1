"""These tests need a GPU; without one they are skipped, with the reason."""

from __future__ import annotations

from functools import cache

import pytest

from iosched.models.errors import DeviceError
from iosched.profiler.cuda_device import AttachedGpu, attach


@cache
def _opened() -> AttachedGpu | str:
    try:
        return attach()
    except DeviceError as error:
        return str(error).splitlines()[0]


@pytest.fixture(scope="session")
def gpu() -> AttachedGpu:
    found = _opened()
    if isinstance(found, str):
        pytest.skip(found)
    return found
