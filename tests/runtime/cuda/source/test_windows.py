"""Windows and images as kernels see them."""

from __future__ import annotations

import pytest
from host_cuda import blank

from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.windows import Image, Window


@pytest.mark.parametrize("before", [0, 3])
def test_an_image_is_planar_where_pixels_lie_closer_than_channels(before: int) -> None:
    assert Image.of(blank((2, 4, 5, 6), before=before, layout=Layout.NCHW).view).is_planar
    assert not Image.of(blank((2, 4, 5, 6), before=before).view).is_planar
    assert Image.of(blank((2, 4, 6), before=before).view).is_planar


def test_a_single_pixel_is_channels_and_a_single_channel_is_pixels() -> None:
    assert not Image.of(blank((2, 4, 1, 1), layout=Layout.NCHW).view).is_planar
    assert Image.of(blank((2, 1, 5, 6)).view).is_planar
    assert Image.of(blank((2, 4, 5, 1), layout=Layout.NCHW).view).is_planar


def test_transposing_exchanges_rows_and_columns() -> None:
    window = Window((1, 2), (3, 4), (5, 6, 7, 8), (9, 10))
    assert window.transposed == Window((2, 1), (4, 3), (6, 5, 8, 7), (10, 9))
    image = Image.of(blank((2, 3, 4, 5)).view)
    assert image.transposed.shape == (2, 3, 5, 4)
    assert image.transposed.operand.strides == (60, 1, 3, 15)
    assert (window.transposed.transposed, image.transposed.transposed) == (window, image)
