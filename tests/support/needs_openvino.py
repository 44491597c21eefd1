"""Marks tests that run on OpenVINO itself, which is an extra of its own."""

from __future__ import annotations

import pytest

from iosched.runtime.openvino.library import missing

NEEDS_OPENVINO = pytest.mark.skipif(missing() is not None, reason=str(missing()))
