"""Batching ships where it is faster beyond the noise than the better of what people do without it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from members import chains

from iosched.jobs.batching import comparison
from iosched.jobs.batching.comparison import Compared, compare_rivals, predict_rivals
from iosched.jobs.batching.pace import Pace
from iosched.jobs.batching.plan import composed
from iosched.jobs.batching.rivals import Rival, Site, mixed_rivals, packed_rivals, serial_rivals
from iosched.jobs.opening import opened
from iosched.models.errors import DeviceError
from iosched.profiler.devices.device import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.in_turn import Budget, Candidate
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.inputs import random_inputs


class Scripted:
    """A device on which rivals take as long as is written down, in milliseconds, round by round."""

    budget = Budget()

    def __init__(self, latencies_ms: dict[str, list[float]]) -> None:
        self.latencies_ms = latencies_ms

    def in_turn(self, candidates: dict[str, Candidate], budget: Budget, observer: object = None) -> object:
        if set(candidates) <= set(self.latencies_ms):
            return {name: self._measured(name) for name in candidates}
        return {name: Measurement(float(index), 0, 0, (float(index),)) for index, name in enumerate(candidates)}

    def _measured(self, name: str) -> Measurement:
        return summarize([1000 * latency for latency in self.latencies_ms[name]])


def rivals(tmp_path: Path, stack: ExitStack) -> list[Rival]:
    cluster = composed(chains(2))
    device = resolve("v100", cluster.model)
    model = stack.enter_context(opened(device, cluster.model, OpenSettings(), tmp_path / "db"))
    site = Site(cluster.model, cluster.members, model)
    return [*serial_rivals(site), *packed_rivals(site), *mixed_rivals(site)]


def decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **latencies_ms: list[float]) -> Compared:
    closed: list[str] = []
    monkeypatch.setattr(
        Rival, "ready", lambda rival, inputs: Candidate(lambda n: [1.0] * n, lambda: closed.append(rival.row))
    )
    with ExitStack() as stack:
        found = rivals(tmp_path, stack)
        here = Scripted(latencies_ms)
        compared = compare_rivals(here, found, {}, Pace(None, 0.0), lambda done, total: None)  # type: ignore[arg-type]
    assert closed == [rival.row for rival in found]
    return compared


def around(median: float, noise: float = 0.01) -> list[float]:
    return [median * (1 + noise * step) for step in (0, 1, -1, 2, -2, 1, -1, 0, 2, -2)]


def test_what_is_faster_than_both_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided(tmp_path, monkeypatch, serial=around(9), packed=around(6), mixed=around(4))
    assert found.shipped == "mixed"
    assert found.ratio is not None
    assert found.ratio.of == "packed/mixed"
    assert found.ratio.low <= 1.5 <= found.ratio.high
    assert [(row.name, row.latency_us) for row in found.rows] == [("serial", 9000), ("packed", 6000), ("mixed", 4000)]


def test_the_better_of_the_others_ships_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = [3.0, 7.0, 4.0, 8.0, 3.5, 7.5, 6.5, 4.5, 5.0, 6.0]
    found = decided(tmp_path, monkeypatch, serial=around(9), packed=around(6), mixed=noisy)
    assert found.shipped == "packed"
    assert found.reason.startswith("no difference found: one schedule for all of them is")
    found = decided(tmp_path, monkeypatch, serial=around(5), packed=around(6), mixed=around(7))
    assert found.shipped == "serial"
    assert found.reason.startswith("one model after another is faster")


def test_ways_that_the_device_refuses_take_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(rival: Rival, inputs: object) -> Candidate:
        if rival.row == "packed" or refuses_all:
            raise DeviceError("not enough memory")
        return Candidate(lambda count: [1.0] * count)

    monkeypatch.setattr(Rival, "ready", ready)
    with ExitStack() as stack:
        found = rivals(tmp_path, stack)
        here = Scripted({"serial": around(5), "mixed": around(4)})
        refuses_all = False
        compared = compare_rivals(here, found, {}, Pace(None, 0.0), lambda done, total: None)  # type: ignore[arg-type]
        assert [row.name for row in compared.rows] == ["serial", "mixed"]
        refuses_all = True
        with pytest.raises(DeviceError, match="not enough memory"):
            compare_rivals(here, found, {}, Pace(None, 0.0), lambda done, total: None)  # type: ignore[arg-type]


def test_on_paper_the_least_latency_ships(tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = predict_rivals(rivals(tmp_path, stack))
    least = min(row.latency_us for row in found.rows)
    assert next(row.latency_us for row in found.rows if row.name == found.shipped) == pytest.approx(least)


def test_sessions_are_timed_on_inputs_of_the_whole(tmp_path: Path) -> None:
    cluster = composed(chains(2))
    device = resolve("cpu", cluster.model)
    with opened(device, cluster.model, OpenSettings(threads=2), tmp_path / "db") as model:
        site = Site(cluster.model, cluster.members, model)
        inputs = random_inputs(cluster.model.graph.inputs)
        plain = [rival for rival in packed_rivals(site) if "onnxruntime" in rival.text]
        assert len(plain) == 2
        for rival in plain:
            with closing(rival.ready(inputs)) as candidate:
                assert len(candidate.time(2)) == 2
            assert rival.running().runtime["by"] == "onnxruntime"


def test_every_row_has_words() -> None:
    assert comparison.WORDS.keys() == set(comparison.ROW_NAMES)
