"""The bar chart of `bench --plot`."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from iosched.cli.pictures.charts import draw_bars


def test_bars_are_as_long_as_latencies() -> None:
    svg = ET.fromstring(draw_bars("t", [("a", 100.0, 90.0, 110.0), ("b", 50.0, 45.0, 60.0)]))
    bars = [float(rect.get("width", "")) for rect in svg.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars[0] == pytest.approx(2 * bars[1], abs=0.2)
