"""The table of schedules that need no search, and how often each is close or faster."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def candidates(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("candidates")


def row(device: str, **us: list[float]) -> dict[str, Any]:
    return {"device": device, "network": "squeezenet", "us": us, "seconds": {"both": 2.0, "lanes": 0.5}}


def test_speedups_of_measured_latencies_have_intervals_and_computed_ones_do_not(candidates: ModuleType) -> None:
    computed = row("v100", sequential=[40.0], greedy=[20.4], lanes=[19.0], both=[20.0])
    measured = row("cpu", sequential=[40.0] * 9, greedy=[30.0] * 9, lanes=[20.0] * 9, both=[20.0] * 9)
    session = {**measured, "us": {**measured["us"], "session": [50.0] * 9}}
    assert candidates.table([session])[1][0][6] == "2.50 (2.50 to 2.50)"
    _, rows = candidates.table([computed, measured])
    assert rows[0][3:] == ["2.000", "1.020", "0.950"]
    assert rows[1][3:6] == ["2.00 (2.00 to 2.00)", "1.50 (1.50 to 1.50)", "1.00 (1.00 to 1.00)"]
    lines = list(candidates.summary([computed, measured]))
    assert lines[1].startswith("v100: greedy within 3 % on 1 of 1, clearly faster on 0;")
    assert lines[2].startswith("v100: lanes within 3 % on 1 of 1, clearly faster on 1;")
    assert lines[5].startswith("cpu: lanes within 3 % on 1 of 1, clearly faster on 0;")
