"""The heat map of `matrix --plot`."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from iosched.cli.pictures.charts import draw_heat_map

SVG = "{http://www.w3.org/2000/svg}"


def test_slower_cells_are_darker_and_the_own_schedule_is_framed() -> None:
    slowdown = [[1.0, 1.01], [1.3, 1.0]]
    svg = ET.fromstring(draw_heat_map("t <&", "c", ["a", "b"], [[100.0, 101.0], [260.0, 200.0]], slowdown))
    cells = list(svg.iter(f"{SVG}rect"))[1:]
    assert [cell.get("stroke") is not None for cell in cells] == [True, False, False, True]
    own, little, much, also_own = (int(str(cell.get("fill"))[5:], 16) for cell in cells)  # blue, which grows less
    assert own == also_own > little > much
    words = [element.text for element in svg.iter(f"{SVG}text")]
    assert {"t <&", "100.0 µs", "+1.0%", "+30.0%"} <= set(words)
