"""`explore` on a cluster: the same trials as on this machine, in parallel, and none lost with its worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import LATENCIES_US, latencies_by_stage, script_models
from small_models import branches
from thread_cluster import BRIEF, ThreadPool, finish, soon, thread_pool
from toy_space import SPACE

from iosched.jobs.explore import explore
from iosched.jobs.exploring.explore_settings import ExploreSettings
from iosched.jobs.exploring.score import SCORE, Score, ScoreCommand
from iosched.jobs.pool.task import How, Pending, Task
from iosched.jobs.ranking.rank_task import COST
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
    """Settings of a study of six trials in a temporary file; no result depends on the clock."""
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
def test_trials_find_the_same_as_on_this_machine(base: Model, settings: Settings) -> None:
    local = explore(base, SPACE, settings("here"))
    with thread_pool(cpu=1) as pool:
        found = explore(base, SPACE, settings("there"), pool=pool)
    values = [(each.choices, each.feedback.values, each.state) for each in found.found.individuals]
    assert values == [(each.choices, each.feedback.values, each.state) for each in local.found.individuals]
    assert [each.number for each in found.chosen] == [each.number for each in local.chosen]
    assert [each.document.schedule for each in found.chosen] == [each.document.schedule for each in local.chosen]


@pytest.mark.slow
def test_three_workers_evaluate_three_trials_at_a_time(base: Model, settings: Settings) -> None:
    most: list[int] = []
    with thread_pool(cpu=3) as pool:
        finish(pool, pool.submit(Task(SCORE, Score("t", ScoreCommand(("true",), 20.0), ".", {}), base, "cpu")))
        soon(pool, lambda: len(pool.workers) == 3)
        pool.on_submit = lambda task: most.append(1 + sum(not each.is_done for each in pool.pending))
        found = explore(base, SPACE, settings(trials=6, top=0), pool=pool).found
    assert max(most) == 3
    assert len(found.finished) == 6


@pytest.mark.slow
def test_a_trial_whose_worker_is_lost_is_evaluated_by_another_under_its_number(base: Model, settings: Settings) -> None:
    local = explore(base, SPACE, settings("here"))
    with thread_pool(cpu=3) as pool:
        pool.loses = {0, 2}
        found = explore(base, SPACE, settings("there"), pool=pool).found
    assert [each.feedback.values for each in found.individuals] == [
        each.feedback.values for each in local.found.individuals
    ]
    assert len(pool.status().workers) == 1


@pytest.mark.slow
def test_a_variant_that_no_worker_survives_is_a_trial_that_failed(base: Model, settings: Settings) -> None:
    with thread_pool(cpu=1) as pool:
        pool.poison = {1}
        found = explore(base, SPACE, settings(top=0), pool=pool).found
    failed = [each for each in found.individuals if each.state == "failed"]
    (reason,) = {each.feedback.reason for each in failed}
    assert reason is not None
    assert "workers were lost again and again as they did it" in reason
    assert len(found.finished) == 6


@pytest.mark.slow
def test_each_trial_is_costed_on_all_devices(base: Model, settings: Settings) -> None:
    with thread_pool(cpu=1, v100=1) as pool:
        found = explore(base, SPACE, settings(objectives=("latency:v100", "latency:cpu")), pool=pool).found
    assert all({"latency:v100", "latency:cpu"} <= each.feedback.values.keys() for each in found.individuals)
    assert {task.device for task in pool.tasks} == {"cpu", "v100"}


@pytest.mark.slow
def test_workers_run_the_score_command(base: Model, settings: Settings) -> None:
    code = "import sys, json; print(len(json.loads(sys.argv[2])) + (sys.argv[1].count('trial-') == 1))"
    asked = settings(objectives=("latency:cpu", "max:score"), score_command=scoring(code))
    with thread_pool(cpu=2) as pool:
        found = explore(base, SPACE, asked, pool=pool).found
    assert [task.kind.name for task in pool.tasks].count("score") >= 1
    for each in found.individuals:
        assert each.feedback.values["score"] == len(each.choices) + 1
        assert each.feedback.seconds > 0


def test_a_failed_score_command_is_the_reason_of_its_trial(base: Model, settings: Settings) -> None:
    asked = settings(objectives=("max:score",), score_command=scoring("import sys; sys.exit(7)"), trials=2)
    with thread_pool(cpu=1) as pool:
        found = explore(base, SPACE, asked, pool=pool).found
    reasons = {each.feedback.reason for each in found.individuals}
    assert reasons == {"the score command failed with exit code 7"}


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_score_whose_worker_is_lost_is_run_again_unless_it_may_still_run(
    base: Model, settings: Settings, has_ended: bool
) -> None:
    asked = settings(objectives=("max:score",), score_command=scoring("print(1)"), trials=2, top=0)
    with thread_pool(cpu=2) as pool:
        pool.loses, pool.has_ended = {0}, has_ended
        first, second = explore(base, SPACE, asked, pool=pool).found.individuals
    assert second.state == "complete"
    assert first.state == ("complete" if has_ended else "failed")
    if not has_ended:
        assert "so it is not run again: killed" in (first.feedback.reason or "")


@pytest.mark.slow
def test_equal_variants_of_concurrent_trials_are_evaluated_once(base: Model, settings: Settings) -> None:
    with thread_pool(cpu=4) as pool:
        found = explore(base, SPACE, settings(trials=8, top=0), pool=pool).found
    keys = [each.feedback.key for each in found.individuals]
    assert len(keys) > len(set(keys)) == sum(task.kind.name == "cost" for task in pool.tasks)
    assert found.reused == len(keys) - len(set(keys))


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_score_command_that_is_worse_than_others_is_stopped(
    base: Model, settings: Settings, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """Those with a Tanh are bad from the first step on; from the ninth trial on they take minutes.

    If their workers are lost when they are told to stop, their trials end as well.
    """
    stop = ThreadPool.stop

    def stop_and_lose(pool: ThreadPool, pending: Pending[Any], how: How) -> None:
        stop(pool, pending, how)
        if how == "pruned" and is_lost:
            pool.transport.kill(pool.calls[-1][0])

    monkeypatch.setattr(ThreadPool, "stop", stop_and_lose)
    code = (
        "import json, sys, time; bad = 'Tanh' in json.loads(sys.argv[2]).values();"
        "print(json.dumps({{'step': 1, 'good': 0.1 if bad else 0.9}}), flush=True);"
        "time.sleep({} if bad else 0); print(0.1 if bad else 0.9)"
    )
    asked = settings(objectives=("good",), prunes=True, seed=4, top=0, trials=8, score_timeout_s=60)
    with thread_pool(cpu=1) as pool:
        explore(base, SPACE, replace(asked, score_command=scoring(code.format(0))), pool=pool)
        again = replace(asked, trials=12, score_command=scoring(code.format(600)))
        found = explore(base, SPACE, again, pool=pool).found
    stopped = [each for each in found.individuals if each.state == "stopped"]
    assert stopped
    reasons = {each.feedback.reason for each in stopped}
    assert reasons == {"pruned after step 1: worse than the median of other trials"}
    assert all("Tanh" in each.choices.values() for each in stopped)


@pytest.mark.slow
def test_a_cluster_without_workers_ends_the_study_which_can_be_resumed(base: Model, settings: Settings) -> None:
    with thread_pool(timeouts=BRIEF, cpu=1) as pool:
        pool.loses = {2}
        with pytest.raises(DeviceLostError, match="all workers"):
            explore(base, SPACE, settings(), pool=pool)
    with thread_pool(cpu=1) as pool:
        found = explore(base, SPACE, settings(), pool=pool).found
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


def test_an_interruption_ends_the_study_with_the_trials_so_far(base: Model, settings: Settings) -> None:
    interrupt = AfterTwo()

    def after_two(task: Task[Any]) -> None:
        interrupt.came = sum(each.kind is COST for each in pool.tasks) == 2

    with thread_pool(cpu=1) as pool:
        pool.on_submit = after_two
        result = explore(base, SPACE, settings(top=0), interrupt=interrupt, pool=pool)
    assert result.was_interrupted
    assert len(result.found.finished) < 6


def test_a_device_that_the_cluster_does_not_have_is_refused_at_the_start(base: Model, settings: Settings) -> None:
    asked = settings(objectives=("latency:cuda:0",))
    says = "the cluster has no device 'cuda:0': it has cpu"
    with thread_pool(cpu=1) as pool, pytest.raises(UsageError, match=says):
        explore(base, SPACE, asked, pool=pool)
    assert not asked.storage.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_score_several_variants_as_one_model(
    base: Model, settings: Settings, tmp_path: Path, workers: int
) -> None:
    code = (
        "import json, sys; found = json.loads(sys.argv[2]); of = lambda each: 0.1 if 'Tanh' in each.values() else 0.9;"
        "several = {name: of(each) for name, each in found.items() if isinstance(each, dict)};"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(str(len(several)) + ' ');"
        "print(json.dumps(several or of(found)))"
    )
    asked = settings(objectives=("max:score",), score_command=scoring(code), score_batch=3, trials=6, top=0, seed=4)
    with thread_pool(cpu=workers) as pool:
        found = explore(base, SPACE, asked, pool=pool).found
    assert [each.state for each in found.individuals] == ["complete"] * 6
    for each in found.individuals:
        assert each.feedback.values["score"] == (0.1 if "Tanh" in each.choices.values() else 0.9)
    assert "3" in (tmp_path / "calls").read_text().split()
