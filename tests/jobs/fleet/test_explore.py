"""`explore` on a cluster: the trials that this machine would find, side by side, and none lost with its worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from scripted import LATENCIES_US, latencies_by_stage, script_models
from small_models import branches
from thread_fleet import ThreadFleet, thread_fleet
from toy_space import SPACE

from iosched.jobs.explore import explore
from iosched.jobs.exploring.settings import ExploreSettings
from iosched.jobs.fleet.explore import explore_there
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceLostError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model

Settings = Callable[..., ExploreSettings]


@pytest.fixture
def base() -> Model:
    return load_model(branches().SerializeToString())


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a study of six trials in a file of the test's own; no clock decides anything."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch)

    def make(name: str = "study", **others: Any) -> ExploreSettings:
        plain = ExploreSettings(
            tmp_path / f"{name}.db",
            sampler="random",
            trials=6,
            objectives=("latency:cpu", "params"),
            top=1,
            measure="stages",
            optimize=OptimizeSettings(threads=2, profile_db=tmp_path / f"{name}.profile"),
        )
        return replace(plain, **others)

    return make


def scoring(code: str) -> str:
    return f"{sys.executable} -I -S -c {json.dumps(code)} {{model}} {{params}}"


@pytest.mark.slow
def test_trials_find_what_they_find_on_this_machine(base: Model, settings: Settings) -> None:
    local = explore(base, SPACE, settings("here"))
    with thread_fleet(cpu=1) as fleet:
        found = explore_there(fleet, base, SPACE, settings("there"))
    values = [(each.choices, each.feedback.values, each.state) for each in found.found.individuals]
    assert values == [(each.choices, each.feedback.values, each.state) for each in local.found.individuals]
    assert [each.number for each in found.chosen] == [each.number for each in local.chosen]
    assert [each.document.schedule for each in found.chosen] == [each.document.schedule for each in local.chosen]


@pytest.mark.slow
def test_as_many_trials_are_under_way_as_there_are_workers(base: Model, settings: Settings) -> None:
    most: list[int] = []
    all_busy = Event()

    class Counted(ThreadFleet):
        """Answers nothing before all workers have a trial."""

        def submit(self, errand: Any) -> Any:
            most.append(1 + sum(not task.future.done() for task in self._open))
            if most[-1] == 3:
                all_busy.set()
            return super().submit(errand)

        def _called(self, worker: Any, task: Any) -> Any:
            assert all_busy.wait(20)
            return super()._called(worker, task)

    fleet = Counted({"cpu": 3})
    found = explore_there(fleet, base, SPACE, settings(trials=6, top=0)).found
    fleet.close()
    assert max(most) == 3
    assert len(found.finished) == 6


@pytest.mark.slow
def test_a_trial_whose_worker_is_lost_is_evaluated_by_another_under_its_number(base: Model, settings: Settings) -> None:
    local = explore(base, SPACE, settings("here"))
    with thread_fleet(cpu=3) as fleet:
        fleet.loses = {0, 2}
        found = explore_there(fleet, base, SPACE, settings("there")).found
    assert [each.feedback.values for each in found.individuals] == [
        each.feedback.values for each in local.found.individuals
    ]
    assert len(fleet.status().workers) == 1


@pytest.mark.slow
def test_a_variant_that_no_worker_survives_is_a_trial_that_failed(base: Model, settings: Settings) -> None:
    with thread_fleet(cpu=1) as fleet:
        fleet.poison = {1}
        found = explore_there(fleet, base, SPACE, settings(top=0)).found
    failed = [each for each in found.individuals if each.state == "failed"]
    assert {each.feedback.reason for each in failed} == {"workers were lost again and again as they did it"}
    assert len(found.finished) == 6


@pytest.mark.slow
def test_several_devices_are_asked_side_by_side(base: Model, settings: Settings) -> None:
    with thread_fleet(cpu=1, v100=1) as fleet:
        found = explore_there(fleet, base, SPACE, settings(objectives=("latency:v100", "latency:cpu"))).found
    assert all({"latency:v100", "latency:cpu"} <= each.feedback.values.keys() for each in found.individuals)
    assert {errand.device for errand in fleet.errands} == {"cpu", "v100"}


@pytest.mark.slow
def test_a_score_is_what_the_command_says_on_a_worker(base: Model, settings: Settings) -> None:
    code = "import sys, json; print(len(json.loads(sys.argv[2])) + (sys.argv[1].count('trial-') == 1))"
    asked = settings(objectives=("latency:cpu", "max:score"), score_command=scoring(code))
    with thread_fleet(cpu=2) as fleet:
        found = explore_there(fleet, base, SPACE, asked).found
    assert [errand.kind for errand in fleet.errands].count("score") >= 1
    for each in found.individuals:
        assert each.feedback.values["score"] == len(each.choices) + 1
        assert each.feedback.seconds > 0


def test_a_score_that_fails_is_the_trials_reason(base: Model, settings: Settings) -> None:
    asked = settings(objectives=("max:score",), score_command=scoring("import sys; sys.exit(7)"), trials=2)
    with thread_fleet(cpu=1) as fleet:
        found = explore_there(fleet, base, SPACE, asked).found
    reasons = {each.feedback.reason for each in found.individuals}
    assert reasons == {"the score command failed with exit code 7"}


@pytest.mark.slow
def test_a_variant_that_another_trial_under_way_is_of_is_evaluated_once(base: Model, settings: Settings) -> None:
    with thread_fleet(cpu=4) as fleet:
        found = explore_there(fleet, base, SPACE, settings(trials=8, top=0)).found
    keys = [each.feedback.key for each in found.individuals]
    assert len(keys) > len(set(keys)) == sum(errand.kind == "cost" for errand in fleet.errands)
    assert found.reused == len(keys) - len(set(keys))


@pytest.mark.slow
def test_a_score_command_is_ended_where_it_is_worse_than_others(base: Model, settings: Settings) -> None:
    """Those with a Tanh are bad from the first step on; from the ninth trial on they take minutes."""
    code = (
        "import json, sys, time; bad = 'Tanh' in json.loads(sys.argv[2]).values();"
        "print(json.dumps({{'step': 1, 'good': 0.1 if bad else 0.9}}), flush=True);"
        "time.sleep({} if bad else 0); print(0.1 if bad else 0.9)"
    )
    asked = settings(objectives=("good",), prunes=True, seed=4, top=0, trials=8, score_timeout_s=60)
    with thread_fleet(cpu=1) as fleet:
        explore_there(fleet, base, SPACE, replace(asked, score_command=scoring(code.format(0))))
        again = replace(asked, trials=12, score_command=scoring(code.format(600)))
        found = explore_there(fleet, base, SPACE, again).found
    stopped = [each for each in found.individuals if each.state == "stopped"]
    assert stopped
    assert all(each.feedback.reason == "pruned after step 1: worse than the median of other trials" for each in stopped)
    assert all("Tanh" in each.choices.values() for each in stopped)


@pytest.mark.slow
def test_a_cluster_without_workers_ends_the_study_which_goes_on_later(base: Model, settings: Settings) -> None:
    with thread_fleet(cpu=1) as fleet:
        fleet.loses = {2}
        with pytest.raises(DeviceLostError, match="all workers"):
            explore_there(fleet, base, SPACE, settings())
    with thread_fleet(cpu=1) as fleet:
        found = explore_there(fleet, base, SPACE, settings()).found
    assert [each.state for each in found.individuals] == ["complete"] * 6


class AfterTwo:
    """Ctrl-C after two trials, answered with yes."""

    can_come = True
    accepted = False
    came = False

    def holding(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()

    def ask(self) -> None:
        self.came, self.accepted = False, True


def test_an_interruption_ends_it_with_what_was_found(base: Model, settings: Settings) -> None:
    interrupt = AfterTwo()

    class Interrupting(ThreadFleet):
        def submit(self, errand: Any) -> Any:
            interrupt.came = sum(each.kind == "cost" for each in self.errands) == 2
            return super().submit(errand)

    fleet = Interrupting({"cpu": 1})
    result = explore_there(fleet, base, SPACE, settings(top=0), interrupt=interrupt)
    fleet.close()
    assert result.was_interrupted
    assert len(result.found.finished) < 6


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"objectives": ("latency:cuda:0",)}, "the cluster has no device 'cuda:0': it has cpu"),
        ({"score_batch": 2, "objectives": ("max:score",), "score_command": scoring("print(1)")}, "--score-batch"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_study_is_begun(
    base: Model, settings: Settings, changed: dict[str, Any], says: str
) -> None:
    asked = settings(**changed)
    with thread_fleet(cpu=1) as fleet, pytest.raises(UsageError, match=says):
        explore_there(fleet, base, SPACE, asked)
    assert not asked.storage.exists()
