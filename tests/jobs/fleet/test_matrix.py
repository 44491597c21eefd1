"""`matrix` on a cluster: the schedules and latencies that this machine finds, for several devices at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import fire, latencies_by_stage
from thread_fleet import thread_fleet

from iosched.jobs.fleet.matrix import matrix_there
from iosched.jobs.matrix import MatrixSettings, matrix
from iosched.models.errors import DeviceLostError, UsageError

BATCHES = [(size, fire(size)) for size in (1, 2)]


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_by_stage(monkeypatch)


def test_cells_are_those_that_this_machine_finds(tmp_path: Path) -> None:
    settings = MatrixSettings(("cpu",), threads=2, profile_db=tmp_path / "p.db")
    local = matrix(BATCHES, settings)
    with thread_fleet(cpu=2) as fleet:
        found = matrix_there(fleet, BATCHES, settings)
    assert found == local


def test_devices_are_those_of_the_cluster_side_by_side() -> None:
    with thread_fleet(cpu=1, v100=1) as fleet:
        found = matrix_there(fleet, BATCHES[:1], MatrixSettings(("v100", "cpu")))
    assert [(target.device, target.batch_size, target.cost) for target in found.targets] == [
        ("v100", 1, "measured"), ("cpu", 1, "measured"),
    ]  # fmt: skip
    assert [(errand.device, errand.kind) for errand in fleet.errands] == [
        ("v100", "search"), ("cpu", "search"), ("v100", "price"), ("cpu", "price"),
    ]  # fmt: skip
    assert len(found.latency_us) == len(found.latency_us[0]) == 2


def test_a_cell_whose_worker_is_lost_is_found_by_another() -> None:
    with thread_fleet(cpu=3) as fleet:
        fleet.loses = {0, 2}
        found = matrix_there(fleet, BATCHES, MatrixSettings(("cpu",)))
    assert len(found.targets) == 2


def test_a_cluster_without_workers_ends_it() -> None:
    with thread_fleet(cpu=1) as fleet:
        fleet.loses = {0}
        with pytest.raises(DeviceLostError):
            matrix_there(fleet, BATCHES, MatrixSettings(("cpu",)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (MatrixSettings(("t4",)), "it has cpu"),
        (MatrixSettings(("cpu",), resume=False), "--no-resume"),
        (MatrixSettings(("cpu",), launch="streams"), "launch='streams'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(settings: MatrixSettings, says: str) -> None:
    with thread_fleet(cpu=1) as fleet, pytest.raises(UsageError, match=says):
        matrix_there(fleet, BATCHES, settings)
    assert fleet.errands == []
