"""`matrix` on a cluster: the same schedules and latencies as on this machine, for several devices at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import fire, latencies_by_stage
from thread_cluster import thread_pool

from iosched.jobs.matrix import MatrixSettings, matrix
from iosched.models.errors import UsageError

BATCHES = [(size, fire(size)) for size in (1, 2)]


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_by_stage(monkeypatch)


def test_cells_are_the_same_as_on_this_machine(tmp_path: Path) -> None:
    settings = MatrixSettings(("cpu",), threads=2, profile_db=tmp_path / "p.db")
    local = matrix(BATCHES, settings)
    with thread_pool(cpu=2) as pool:
        found = matrix(BATCHES, settings, pool=pool)
    assert found == local


def test_all_devices_are_searched_before_any_is_priced() -> None:
    with thread_pool(cpu=1, v100=1) as pool:
        found = matrix(BATCHES[:1], MatrixSettings(("v100", "cpu")), pool=pool)
    assert [(target.device, target.batch_size, target.cost) for target in found.targets] == [
        ("v100", 1, "measured"), ("cpu", 1, "measured"),
    ]  # fmt: skip
    assert [(task.device, task.kind.name) for task in pool.tasks] == [
        ("v100", "search"), ("cpu", "search"), ("v100", "price"), ("cpu", "price"),
    ]  # fmt: skip
    assert len(found.latency_us) == len(found.latency_us[0]) == 2


def test_a_cell_whose_worker_is_lost_is_found_by_another() -> None:
    with thread_pool(cpu=3) as pool:
        pool.loses = {0, 2}
        found = matrix(BATCHES, MatrixSettings(("cpu",)), pool=pool)
    assert len(found.targets) == 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (MatrixSettings(("t4",)), "it has cpu"),
        (MatrixSettings(("cpu",), resume=False), "--no-resume"),
        (MatrixSettings(("cpu",), launch="streams"), "launch='streams'"),
    ],
)
def test_invalid_settings_are_refused_before_any_task_is_submitted(settings: MatrixSettings, says: str) -> None:
    with thread_pool(cpu=1) as pool, pytest.raises(UsageError, match=says):
        matrix(BATCHES, settings, pool=pool)
    assert pool.tasks == []
