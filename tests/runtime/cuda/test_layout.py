"""The layout that is chosen without timing."""

from __future__ import annotations

import pytest

from iosched.runtime.cuda.kernel import H100, Gpu
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.scheduler.precision import PrecisionName

V100, A100 = Gpu(capability=70, processors=80), Gpu(capability=80, processors=108)


@pytest.mark.parametrize(
    ("precision", "gpu", "layout"),
    [
        ("fp32", V100, Layout.NHWC), ("fp16", V100, Layout.NHWC),
        ("fp32", A100, Layout.NCHW), ("fp32", H100, Layout.NCHW),
        ("tf32", H100, Layout.NHWC), ("fp16", H100, Layout.NHWC),
    ],
)  # fmt: skip
def test_strict_float32_is_row_major_on_newer_gpus(precision: PrecisionName, gpu: Gpu, layout: Layout) -> None:
    assert preferred_layout(precision, gpu) is layout
