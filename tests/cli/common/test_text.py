"""The format of numbers."""

from __future__ import annotations

from iosched.cli.common.text import percent_more


def test_a_rounding_difference_has_no_minus_sign() -> None:
    assert [percent_more(ratio) for ratio in (1 - 1e-12, 1.0, 1.25, 0.9)] == ["+0.0%", "+0.0%", "+25.0%", "-10.0%"]
