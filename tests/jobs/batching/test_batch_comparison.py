"""Batching ships where it is faster, beyond the noise, than the better of the methods without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import NEEDS_OPENVINO
from small_models import chains

from iosched.jobs.batching import batch_baselines as methods_
from iosched.jobs.batching import batch_comparison
from iosched.jobs.batching.batch_baselines import (
    Method,
    OpenComposition,
    batched_methods,
    mixed_methods,
    packed_methods,
    serial_methods,
)
from iosched.jobs.batching.batch_comparison import BatchComparison, compare_methods, document_of, predict_methods
from iosched.jobs.batching.member_checks import check_members
from iosched.jobs.batching.model_clusters import composed
from iosched.jobs.open_model import opened
from iosched.jobs.row import Row
from iosched.jobs.run import open_executor
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import DeviceError
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs
from iosched.runtime.openvino import library
from iosched.scheduler.batching.costs import EqualGains
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult


class Scripted:
    """A device on which methods take given latencies, in milliseconds, round by round."""

    measuring = SimpleNamespace(budget=Budget())

    def __init__(self, latencies_ms: dict[str, list[float]]) -> None:
        self.latencies_ms = latencies_ms

    def in_turn(self, candidates: dict[str, Candidate], budget: Budget, observer: object = None) -> object:
        if set(candidates) <= set(self.latencies_ms):
            return {name: self._measured(name) for name in candidates}
        return {name: Measurement(float(index), 0, 0, (float(index),)) for index, name in enumerate(candidates)}

    def _measured(self, name: str) -> Measurement:
        return summarize([1000 * latency for latency in self.latencies_ms[name]])


def methods(tmp_path: Path, stack: ExitStack, shares: bool = False) -> list[Method]:
    """Methods to run two models; if the models share inputs, methods with separate inputs may not ship."""
    cluster = composed(chains(2))
    device = resolve("v100", cluster.model)
    model = stack.enter_context(opened(device, cluster.model, OpenSettings(), tmp_path / "db"))
    target = OpenComposition(cluster.model, cluster.composition.members, model)
    if shares:
        without = replace(target, fed={spec.name: "x" for spec in cluster.model.graph.inputs})
        return [*serial_methods(without), *packed_methods(without), *mixed_methods(target)]
    return [*serial_methods(target), *packed_methods(target), *mixed_methods(target)]


def decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool = False, **latencies_ms: list[float]
) -> BatchComparison:
    closed: list[str] = []
    monkeypatch.setattr(
        Method, "ready", lambda method, inputs: Candidate(lambda n: [1.0] * n, lambda: closed.append(method.row))
    )
    with ExitStack() as stack:
        found = methods(tmp_path, stack, shares)
        here = Scripted(latencies_ms)
        compared = compare_methods(here, found, {}, TimeBudget(None, 0.0), lambda done, total: None)  # type: ignore[arg-type]
    assert closed == [method.row for method in found]
    return compared


def around(median: float, noise: float = 0.01) -> list[float]:
    return [median * (1 + noise * step) for step in (0, 1, -1, 2, -2, 1, -1, 0, 2, -2)]


def test_methods_with_separate_inputs_do_not_ship_if_inputs_are_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file would not have the inputs that are requested."""
    found = decided(tmp_path, monkeypatch, shares=True, serial=around(4), packed=around(6), mixed=around(9))
    assert found.shipped == "mixed"
    assert "running one model after another is faster" in found.reason
    assert found.reason.endswith("because the models share inputs, one schedule for all models ships instead")
    with ExitStack() as stack:
        ways = [replace(each, found=slowed(each.found, each.row)) for each in methods(tmp_path, stack, shares=True)]
        assert predict_methods(ways).shipped == "mixed"


def test_shared_inputs_are_fed_to_models_with_separate_inputs() -> None:
    cluster = composed(chains(2))
    fed: list[dict[str, int]] = []
    target = OpenComposition(cluster.model, cluster.composition.members, None, fed={"a/x": "x", "b/x": "x"})  # type: ignore[arg-type]
    Method("serial", target, None, "", fed.append).ready({"x": 3})  # type: ignore[arg-type]
    assert fed == [{"a/x": 3, "b/x": 3}]


def slowed(found: SearchResult, row: str) -> SearchResult:
    """The result, ten times slower for `mixed`."""
    times = 10 if row == "mixed" else 1
    blocks = (
        replace(
            block, stages=tuple(replace(each, predicted_us=times * (each.predicted_us or 0)) for each in block.stages)
        )
        for block in found.schedule.blocks
    )
    return replace(found, schedule=Schedule(tuple(blocks)))


def test_one_schedule_ships_if_it_is_faster_than_both_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert found.reason.startswith("undecided: one schedule for all models runs at")
    found = decided(tmp_path, monkeypatch, serial=around(5), packed=around(6), mixed=around(7))
    assert found.shipped == "serial"
    assert found.reason.startswith("running one model after another is faster")


def test_methods_that_the_device_refuses_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(method: Method, inputs: object) -> Candidate:
        if method.row == "packed" or refuses_all:
            raise DeviceError("not enough memory")
        return Candidate(lambda count: [1.0] * count)

    monkeypatch.setattr(Method, "ready", ready)
    with ExitStack() as stack:
        found = methods(tmp_path, stack)
        here = Scripted({"serial": around(5), "mixed": around(4)})
        refuses_all = False
        compared = compare_methods(here, found, {}, TimeBudget(None, 0.0), lambda done, total: None)  # type: ignore[arg-type]
        assert [row.name for row in compared.rows] == ["serial", "mixed"]
        refuses_all = True
        with pytest.raises(DeviceError, match="not enough memory"):
            compare_methods(here, found, {}, TimeBudget(None, 0.0), lambda done, total: None)  # type: ignore[arg-type]


def test_more_rounds_choose_among_the_ways_of_a_row_that_are_about_as_fast(tmp_path: Path) -> None:
    """The faster one of three rounds is the slower one of more, when the machine takes twice as long."""
    few = {"usual": [2.1, 2.0, 1.9], "one session": [1.8, 1.9, 2.2], "one core": [4.0, 4.1, 3.9]}
    more = {"usual": around(4.2), "one session": around(4.4)}

    def in_turn(candidates: dict[str, Candidate], budget: Budget) -> dict[str, Measurement]:
        taken = more if budget.rounds > 3 else few
        assert len(candidates) == len(taken)
        return {name: summarize(samples) for name, samples in zip(candidates, taken.values(), strict=True)}

    ways = [Method("serial", None, None, text, None) for text in few]  # type: ignore[arg-type]
    here = SimpleNamespace(in_turn=in_turn)
    found = batch_comparison._usual_us(here, dict.fromkeys(ways), TimeBudget(None, 0.0))  # type: ignore[arg-type]
    assert [way.text for way in sorted(found, key=lambda way: found[way])] == ["usual", "one session"]


def test_the_lowest_predicted_latency_ships(tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = predict_methods(methods(tmp_path, stack))
    least = min(row.latency_us for row in found.rows)
    assert next(row.latency_us for row in found.rows if row.name == found.shipped) == pytest.approx(least)


NAMES = {None: "iosched", "onnxruntime": "onnxruntime", "openvino": "OpenVINO"}


def document(method: Method) -> ScheduleDocument:
    """The file of a method that ships, read back."""
    row = Row(method.row, summarize([1.0]), method.text)
    alone = BatchComparison({method.row: method}, (row,), method.row, "", None)
    written = document_of(resolve("cpu", method.target.model), alone, method.running())
    return ScheduleDocument.from_json(written.to_json())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile database that saves the later tests the measurements of the first one."""
    return tmp_path_factory.mktemp("measured") / "db"


@contextmanager
def here(profile_db: Path) -> Iterator[list[Method]]:
    """All methods to run two models on this machine, separate and batched."""
    cluster = composed(chains(2))
    device, settings = resolve("cpu", cluster.model), OpenSettings(threads=2)
    batched = cluster.batched(cluster.plan("greedy", EqualGains()))
    with ExitStack() as stack:
        apart, one = (
            OpenComposition(
                model, cluster.composition.members, stack.enter_context(opened(device, model, settings, profile_db))
            )
            for model in (cluster.model, batched)
        )
        yield [*serial_methods(apart), *packed_methods(apart), *mixed_methods(apart), *batched_methods(one)]


@pytest.mark.slow
@NEEDS_OPENVINO
def test_every_method_ships_as_it_was_compared(measured: Path) -> None:
    models = chains(2)
    libraries: dict[str, set[str | None]] = {}
    with here(measured) as found:
        for method in found:
            libraries.setdefault(method.row, set()).add(method.library)
            inputs = random_inputs(method.target.model.graph.inputs)
            with closing(method.ready(inputs)) as candidate:
                assert len(candidate.time(2)) == 2
            with closing(open_executor(method.target.model, document(method), threads=2)) as executor:
                check_members(executor.run(inputs), inputs, models, method.target.members)
                assert executor.description.split(",")[0].split()[0] == NAMES[method.library]
                assert ("a session for each" in executor.description) == ("sessions" in method.runtime)
    all_of_them = set(NAMES)
    libraries_alone = all_of_them - {None}
    assert libraries == {"serial": all_of_them, "packed": libraries_alone, "batched": all_of_them, "mixed": {None}}


@pytest.mark.slow
def test_side_by_side_means_sessions_on_a_cpu_and_one_schedule_on_a_gpu(
    tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without iosched, a CPU has no lanes, but a GPU has streams."""
    monkeypatch.setattr(methods_, "_LEAST_LIKELY", float("inf"))  # however slow lanes are measured on a busy machine
    lanes = [["a"], ["b"]]
    with here(measured) as found:
        ours = {method.row for method in found if method.library is None and members_side_by_side(method) == lanes}
        target = found[0].target
        asked = {method.library for method in packed_methods(target, with_ours=True)}
    assert ours == {"mixed"}
    assert asked >= {None, "onnxruntime"}
    with ExitStack() as stack:
        on_paper = [method for method in methods(tmp_path, stack) if members_side_by_side(method) == lanes]
    assert "packed" in {method.row for method in on_paper}


def members_side_by_side(method: Method) -> list[list[str]]:
    """The models of the groups of a schedule's only stage."""
    first, *others = method.schedule.stages
    return [] if others else [sorted({name[0] for name in group}) for group in first.groups]


@NEEDS_OPENVINO
def test_without_openvino_onnxruntime_sessions_run(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with here(measured) as found:
        method = next(each for each in found if (each.row, each.library) == ("packed", "openvino"))
        monkeypatch.setattr(library, "missing", lambda: "OpenVINO is not installed")
        with closing(open_executor(method.target.model, document(method), threads=2)) as executor:
            assert executor.description == "onnxruntime, a session for each model, 2 at a time with 1 thread each"
            assert executor.notes[0] == "Runs without OpenVINO: OpenVINO is not installed"


@NEEDS_OPENVINO
@pytest.mark.parametrize(("late", "note"), [(False, "outputs differ"), (True, "time ran out")])
def test_openvino_is_left_out_if_its_outputs_differ_or_time_runs_out(
    late: bool, note: str, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        OpenComposition, "expected", property(lambda target: dict.fromkeys(target.model.graph.outputs, np.ones(1)))
    )
    time_budget = TimeBudget(1e-9 if late else None, 0.0)
    with here(measured) as found:
        ways = [method for method in found if method.row in ("serial", "packed")]
        scripted = Scripted({"serial": around(5), "packed": around(4)})
        inputs = random_inputs(ways[0].target.model.graph.inputs)
        compared = compare_methods(scripted, ways, inputs, time_budget, lambda done, total: None)  # type: ignore[arg-type]
    assert {method.library for method in compared.methods.values()} <= {None, "onnxruntime"}
    (said,) = compared.notes
    assert note in said


def test_every_row_has_words() -> None:
    assert batch_comparison.WORDS.keys() == set(batch_comparison.ROW_NAMES)
