"""Sessions of onnxruntime, one for each member of a composed model, compute the same as the composed model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import Barrier

import numpy as np
import pytest
from batches import variants
from onnx import helper
from scripted import NEEDS_OPENVINO
from small_models import data, feeds_for, weight

from iosched.models.composition.compose import Composition, compose
from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.runtime.parallel_sessions import ParallelSessions, SessionsSettings, parallel_settings, serial_settings
from iosched.runtime.reference import Reference

node = helper.make_node
SETTINGS = [
    SessionsSettings(1, 1),
    SessionsSettings(1, 2),
    SessionsSettings(2, 1),
    pytest.param(SessionsSettings(1, 2, "openvino"), marks=NEEDS_OPENVINO),
    pytest.param(SessionsSettings(2, 1, "openvino"), marks=NEEDS_OPENVINO),
]


@pytest.fixture(scope="module")
def whole() -> Composition:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Conv", ["r", "v"], ["y"])]
    protos = variants(
        nodes, {"x": [1, 4, 6, 6]}, ["y"], lambda seed: {"w": weight(4, 4, 3, 3, seed=seed), "v": weight(4, 4, 1, 1)}
    )
    return compose({f"m{index}": load_model(data(proto)) for index, proto in enumerate(protos)})


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: each.description)
def test_separate_sessions_compute_the_same_as_a_composed_model(whole: Composition, settings: SessionsSettings) -> None:
    feeds = feeds_for(whole.model)
    with Reference(whole.model) as together:
        want = together.run(feeds)
    with closing(ParallelSessions(whole.model, whole.members, settings)) as sessions:
        got = sessions.run(feeds)
        assert list(got) == list(want)
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
        assert all(each > 0 for each in sessions.time(feeds, 3))
        assert [len(sessions.time(feeds, count)) for count in (1, 4)] == [1, 4]


def test_outputs_are_in_the_order_of_the_models_for_any_order_of_sessions() -> None:
    small, large = (
        variants(
            [node("Conv", ["x", "w"], ["y"])], {"x": [1, 4, size, size]}, ["y"], lambda _: {"w": weight(4, 4, 1, 1)}
        )
        for size in (4, 8)
    )
    both = compose({"small": load_model(data(small[0])), "large": load_model(data(large[0]))})
    with closing(ParallelSessions(both.model, both.members, SessionsSettings(2, 1))) as sessions:
        assert list(sessions.run(feeds_for(both.model))) == ["small/y", "large/y"]


def test_models_run_concurrently_even_in_a_single_run(whole: Composition, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(3)
    alone = Reference.run

    def run(session: Reference, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        together.wait(timeout=30)
        return alone(session, inputs)

    monkeypatch.setattr(Reference, "run", run)
    with closing(ParallelSessions(whole.model, whole.members, SessionsSettings(3, 1))) as sessions:
        assert len(sessions.run(feeds_for(whole.model))) == 3


def test_inputs_that_are_missing_or_unknown_are_named(whole: Composition) -> None:
    feeds = feeds_for(whole.model)
    with closing(ParallelSessions(whole.model, whole.members, SessionsSettings())) as sessions:
        with pytest.raises(UsageError, match="input 'm1/x' is missing"):
            sessions.run({name: value for name, value in feeds.items() if name != "m1/x"})
        with pytest.raises(UsageError, match="no input 'x'; it has m0/x, m1/x, m2/x"):
            sessions.time({**feeds, "x": feeds["m0/x"]}, 1)


@pytest.mark.parametrize(("repeats", "in_a_row"), [(1, None), (2, 13), (14, 13), (30, 29)])
def test_concurrent_sessions_are_timed_long_enough_for_threads_to_settle(
    repeats: int, in_a_row: int | None, whole: Composition, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_out: list[int] = []

    def elapsed_us(_: ParallelSessions, runs: Sequence[object]) -> float:
        """A run of all three models takes 4 ms; 13 runs are the first to take 50 ms."""
        handed_out.append(len(runs))
        return 4000.0 * len(runs) / 3

    monkeypatch.setattr(ParallelSessions, "_elapsed_us", elapsed_us)
    with closing(ParallelSessions(whole.model, whole.members, SessionsSettings(2, 1))) as sessions:
        assert sessions.time(feeds_for(whole.model), repeats) == (4000.0,) * repeats
    assert handed_out == [3, *([] if in_a_row is None else [3 * in_a_row])]


def test_settings_are_described_and_checked() -> None:
    assert serial_settings(2) == (SessionsSettings(1, 2), SessionsSettings(1, 1))
    assert serial_settings(1) == (SessionsSettings(1, 1),)
    assert SessionsSettings(2, 1).description == "onnxruntime, a session for each model, 2 at a time with 1 thread each"
    in_turn = SessionsSettings(1, 2, "openvino")
    assert in_turn.description == "OpenVINO, a session for each model, one after another, 2 threads"
    with pytest.raises(UsageError, match="at least 1"):
        SessionsSettings(0, 1)


@pytest.mark.parametrize(
    ("count", "threads", "lanes"),
    [(2, 1, None), (1, 4, None), (2, 2, (2, 1)), (8, 2, (2, 1)), (2, 8, (2, 4)), (3, 8, (3, 2))],
)
def test_models_at_the_same_time_share_all_cores(count: int, threads: int, lanes: tuple[int, int] | None) -> None:
    assert parallel_settings(count, threads) == (None if lanes is None else SessionsSettings(*lanes))
