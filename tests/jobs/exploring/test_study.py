"""A study outlives the processes that work on it, and does not depend on them."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy_study
from toy_study import asked, card, choices, evaluated, go_on, strategy_of

from iosched.jobs.exploring.explore_result import Feedback
from iosched.jobs.exploring.objectives import SAMPLER_NAMES
from iosched.jobs.exploring.study import begun_study, opened_study
from iosched.models.errors import UsageError


@pytest.mark.parametrize(
    "sampler", ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SAMPLER_NAMES if name != "random")]
)
def test_an_interrupted_study_makes_the_same_trials(tmp_path: Path, sampler: str) -> None:
    whole = choices(go_on(tmp_path / "whole.db", sampler, 8))
    for trials in (3, 6, 8):
        parts = go_on(tmp_path / "parts.db", sampler, trials)
    assert choices(parts) == whole
    assert len(set(whole)) > 3  # a sampler that restarts would repeat its first trials


@pytest.mark.slow
def test_another_seed_makes_another_study(tmp_path: Path) -> None:
    one = go_on(tmp_path / "one.db", "random", 6, card(seed=1))
    other = go_on(tmp_path / "other.db", "random", 6, card(seed=2))
    assert choices(one) != choices(other)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "evolution"])
def test_a_study_whose_process_is_killed_continues_with_the_same_trials(tmp_path: Path, sampler: str) -> None:
    """At any moment: while creating the file, asking, evaluating or reporting."""
    whole = choices(go_on(tmp_path / "whole.db", sampler, 8))
    path = tmp_path / "killed.db"
    moments = random.Random(1)
    script = [sys.executable, str(Path(toy_study.__file__)), str(path), sampler, "8", "0.1"]
    for told in (0, 1, 2):  # after n trials, during the next; and as soon as the file exists
        with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            while not path.exists() and process.poll() is None:
                time.sleep(0.001)
            assert process.stdout is not None
            for _ in range(told):
                process.stdout.readline()
            time.sleep(moments.uniform(0.0, 0.1))
            process.kill()
    assert choices(go_on(path, sampler, 8)) == whole


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    script = [sys.executable, str(Path(toy_study.__file__)), str(path), "evolution", "12", "0.02"]
    both = [subprocess.Popen(script, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    numbers = [sorted(map(int, process.communicate(timeout=120)[0].split())) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(numbers[0] + numbers[1]) == list(range(12))
    assert all(numbers)
    assert choices(opened_study(path)) == choices(go_on(tmp_path / "alone.db", "evolution", 12))


def test_a_trial_of_a_living_process_is_not_taken_over(tmp_path: Path) -> None:
    opened = begun_study(tmp_path / "study.db", card())
    first, second = (
        strategy_of(opened, "random", 2),
        strategy_of(begun_study(tmp_path / "study.db", card()), "random", 2),
    )
    kept = first.ask_graph()
    other = second.ask_graph()
    assert kept is not None
    assert other is not None
    assert (kept, other) == (0, 1)
    assert second.ask_graph() is None
    assert second.has_ended


@pytest.mark.slow
def test_a_variant_that_kills_its_process_three_times_fails(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    for _ in range(3):
        script = [sys.executable, str(Path(toy_study.__file__)), str(path), "random", "1", "60"]
        with subprocess.Popen(script, stdout=subprocess.PIPE) as process:
            _wait_for_choices(path, process)
            process.send_signal(signal.SIGKILL)
            process.wait()
    opened = go_on(path, "random", 2)
    first, second = opened.history()
    assert first.state == "failed"
    assert "3 times" in str(first.feedback.reason)
    assert second.state == "complete"


def _wait_for_choices(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until a process evaluates its trial."""
    while process.poll() is None:
        try:
            with sqlite3.connect(path) as connection:
                claims = connection.execute("SELECT value_json FROM trial_user_attributes").fetchall()
                if any(f" {process.pid} " in claim for (claim,) in claims):
                    return
        except sqlite3.Error:
            pass
        time.sleep(0.02)


@pytest.mark.slow
def test_a_later_call_adds_trials_only_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    assert len(go_on(path, "random", 3).history()) == 3
    assert len(go_on(path, "tpe", 5).history()) == 5
    assert len(go_on(path, "random", 4).history()) == 5


def test_a_budget_is_that_of_the_whole_study(tmp_path: Path) -> None:
    opened = begun_study(tmp_path / "study.db", card())
    for _ in range(2):
        strategy = strategy_of(opened, "random", 100, seconds=3.0)  # each trial reports 1 s
        while (graph := strategy.ask_graph()) is not None:
            strategy.receive_feedback(graph, evaluated(asked(strategy, graph)))
        assert strategy.has_ended
        assert len(opened.history()) == 3


@pytest.mark.slow
def test_grid_tries_every_variant_once_and_ends(tmp_path: Path) -> None:
    opened = go_on(tmp_path / "study.db", "grid", 1000, card("latency:cpu"))
    assert len(opened.history()) == 3 + 3**2 + 3**3
    assert len(set(choices(opened))) == 3 + 3**2 + 3**3


def test_failed_and_stopped_trials_keep_their_reason(tmp_path: Path) -> None:
    opened = begun_study(tmp_path / "study.db", card(constraints="latency:cpu<=5"))
    strategy = strategy_of(opened, "tpe", 3)
    for feedback in (
        Feedback(reason="no such weights"),
        Feedback({"latency:cpu": 7.0}, reason="too slow", is_stopped=True),
        Feedback({"latency:cpu": 7.0, "accuracy": 0.5}),
    ):
        graph = strategy.ask_graph()
        assert graph is not None
        asked(strategy, graph)
        strategy.receive_feedback(graph, feedback)
    failed, stopped, complete = opened.history()
    assert (failed.state, failed.feedback.reason, failed.point) == ("failed", "no such weights", None)
    assert (stopped.state, stopped.feedback.reason, stopped.point) == ("stopped", "too slow", None)
    assert complete.point is not None
    assert complete.point.losses == (7.0, -0.5)
    assert complete.point.violation == pytest.approx(0.4)


@pytest.mark.slow
def test_pruning_stops_a_trial_worse_than_the_median(tmp_path: Path) -> None:
    opened = begun_study(tmp_path / "study.db", card("max:accuracy"))
    strategy = strategy_of(opened, "random", 20)
    for _ in range(6):
        graph = strategy.ask_graph()
        assert graph is not None
        asked(strategy, graph)
        assert not strategy.stops_early(graph, 1, 0.9)
        strategy.receive_feedback(graph, Feedback({"accuracy": 0.9}))
    graph = strategy.ask_graph()
    assert graph is not None
    assert strategy.stops_early(graph, 1, 0.5)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (card("latency:cpu"), "objectives"),
        (card(constraints="accuracy>=0.5"), "constraints"),
        (card(seed=7), "seed"),
    ],
)
def test_a_study_continues_only_with_the_same_settings(tmp_path: Path, other: object, said: str) -> None:
    path = tmp_path / "study.db"
    begun_study(path, card())
    with pytest.raises(UsageError, match=f"with {said}"):
        begun_study(path, other)  # type: ignore[arg-type]
    assert opened_study(path).card == card()
