"""The GPU that tests run on: the first one of the machine, or with IOSCHED_DESK=1 one made of host memory.

The latter is for a rehearsal: it shows what would go wrong before the first kernel does.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from iosched.models.errors import DeviceError
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach

IS_DESK = os.environ.get("IOSCHED_DESK") == "1"


@cache
def attached() -> AttachedGpu | str:
    """The GPU, or why there is none."""
    if IS_DESK:
        import desk_cudnn
        import desk_cupy

        if reason := desk_cupy.missing() or desk_cudnn.missing():
            return reason
        desk = desk_cupy.install()
        desk.count = 1
        desk_cudnn.install(pytest.MonkeyPatch(), desk)
    elif _is_desk_installed():
        return "CuPy is on the desk in this process"
    try:
        return attach()
    except DeviceError as error:
        return str(error).splitlines()[0]


def gpu_or_skip() -> AttachedGpu:
    """The GPU; skips the test where there is none, with the reason."""
    found = attached()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def _is_desk_installed() -> bool:
    import desk_cupy

    return desk_cupy.is_installed()
