"""`rank` on a cluster: the same rows as on this machine, several devices at once, and lost workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import LATENCIES_US, fire, latencies_by_stage, script_models
from thread_cluster import BRIEF, soon, thread_pool

from iosched.jobs.rank import RankInterruptedError, RankSettings, rank
from iosched.models.errors import DeviceLostError, InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model

MODELS: dict[str, Model | Callable[[], Model]] = {"one": fire(1), "two": fire(2), "three": fire(3)}


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch)


def settings(*devices: str, **more: Any) -> RankSettings:
    return RankSettings(devices, measure="stages", threads=2, **more)


def test_rows_are_the_same_as_on_this_machine(tmp_path: Path) -> None:
    local = rank(MODELS, replace(settings("cpu"), profile_db=tmp_path / "p.db"))
    with thread_pool(cpu=2) as pool:
        found = rank(MODELS, settings("cpu"), pool=pool)
    assert [(row.model, row.latency_us, row.flops) for row in found.rows] == [
        (row.model, row.latency_us, row.flops) for row in local.rows
    ]
    assert found.failure is None
    assert pool.packets == [], "each worker has its own row"


def test_workers_without_a_row_help_with_the_search() -> None:
    with thread_pool(cpu=3) as pool:
        rank({"one": fire()}, settings("cpu"), pool=pool)
    assert len(pool.packets) > 3


def test_several_devices_are_ranked_at_once_under_the_clusters_names() -> None:
    with thread_pool(cpu=1, v100=1) as pool:
        found = rank(MODELS, settings("v100", "cpu"), pool=pool)
    assert [row.device for row in found.rows] == ["v100"] * 3 + ["cpu"] * 3
    assert {row.cost.device for row in found.rows if row.cost} == {"v100", "cpu"}
    assert [task.device for task in pool.tasks] == ["v100", "cpu"] * 3


def test_a_gpu_that_no_machine_has_is_simulated_on_cpus_between_their_measurements(tmp_path: Path) -> None:
    local = rank(MODELS, replace(settings("v100"), profile_db=tmp_path / "p.db"))
    with thread_pool(cpu=2) as pool:
        found = rank(MODELS, settings("v100", "cpu"), pool=pool)
    assert [(task.device, task.kind.name) for task in pool.tasks] == 3 * [("cpu", "simulation"), ("cpu", "cost")]
    assert [(row.model, row.latency_us) for row in found.rows if row.device == "v100"] == [
        (row.model, row.latency_us) for row in local.rows
    ]


def test_a_gpu_is_not_simulated_where_the_cluster_has_no_cpu() -> None:
    with thread_pool(h100=1) as pool, pytest.raises(UsageError, match="it has h100"):
        rank(MODELS, settings("v100"), pool=pool)


def test_a_broken_model_is_a_row_with_its_reason() -> None:
    with thread_pool(cpu=1) as pool:
        found = rank({"broken": lambda: load_model(b"none"), "good": fire()}, settings("cpu"), pool=pool)
    good, broken = found.rows
    assert good.cost is not None
    assert isinstance(broken.failure, InvalidModelError)


def test_a_row_whose_worker_is_lost_is_found_by_another() -> None:
    with thread_pool(cpu=2) as pool:
        pool.loses = {1}
        found = rank(MODELS, settings("cpu"), pool=pool)
    assert all(row.cost is not None for row in found.rows)
    assert len(pool.status().workers) == 1


def test_a_model_that_no_worker_survives_is_a_row_with_its_reason() -> None:
    with thread_pool(cpu=1) as pool:
        pool.poison = {1}
        found = rank(MODELS, settings("cpu"), pool=pool)
    assert [row.error for row in found.rows[:2]] == [None, None]
    assert found.rows[2].error is not None
    assert "cost fire: workers were lost again and again as they did it" in found.rows[2].error


def test_a_cluster_without_workers_ends_the_job() -> None:
    with thread_pool(timeouts=BRIEF, cpu=1) as pool:
        pool.loses = {0}
        with pytest.raises(DeviceLostError, match="all workers"):
            rank(MODELS, settings("cpu"), pool=pool)


def test_an_interruption_carries_the_completed_rows() -> None:
    class Impatient:
        def progress(self, done: int, total: int | None, text: str) -> None:
            if done == 1:
                raise KeyboardInterrupt

    with thread_pool(cpu=1) as pool, pytest.raises(RankInterruptedError) as error:
        rank(MODELS, settings("cpu"), Impatient(), pool)
    rows = error.value.result.rows
    assert len(rows) == 3
    assert sum(row.is_unreached for row in rows) == 2


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"devices": ("cpu", "gpu")}, "it has cpu"), ({"resume": False}, "--no-resume"), ({"measure": "all"}, "unknown")],
)
def test_invalid_settings_are_refused_before_any_task_is_submitted(changed: dict[str, Any], says: str) -> None:
    with thread_pool(cpu=1) as pool, pytest.raises(UsageError, match=says):
        rank(MODELS, replace(settings("cpu"), **changed), pool=pool)
    assert pool.tasks == []


def test_a_budget_is_divided_by_the_number_of_rows_per_worker() -> None:
    with thread_pool(cpu=2) as pool:
        rank({"first": fire(4)}, settings("cpu"), pool=pool)
        soon(pool, lambda: len(pool.workers) == 2)
        rank(MODELS, settings("cpu", budget_s=90.0), pool=pool)
    budgets = [task.work.settings.budget_s for task in pool.tasks[1:]]
    assert budgets[0] == pytest.approx(60, abs=2)
    assert all(budget <= 90 for budget in budgets)
