"""Notes on shared cores and exceeded quotas appear wherever a model is measured or run."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from scripted import fire
from shipped import document

from iosched.jobs.bench import bench
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.run import open_executor
from iosched.profiler.devices.cpu import device
from iosched.profiler.devices.cpu.facts import cpu_facts
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu import lane_cpus, remarks
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE, Claims, LaneCpus
from iosched.runtime.cpu.remarks import core_remarks, thread_remarks


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Claims:
    """Another process, on a machine of four cores."""
    name = f"iosched.test.{uuid4().hex}"
    monkeypatch.delenv(SHARE_VARIABLE)
    monkeypatch.setattr(lane_cpus, "PROCESS", Claims(name))
    monkeypatch.setattr(lane_cpus, "allowed_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(remarks, "allowed_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(lane_cpus, "siblings", lambda cpu: frozenset((cpu,)))
    monkeypatch.setattr(lane_cpus, "is_time_shared", lambda: False)
    return Claims(name)


def take(others: Claims, lanes: int) -> object:
    return others.take(lanes, (0, 1, 2, 3), lambda cpu: frozenset((cpu,)))


def on_cores(lanes: int) -> tuple[str, ...]:
    cpus = LaneCpus(lanes)
    cpus.of(lanes)
    return core_remarks(cpus)


def test_no_note_while_there_are_enough_cores(others: Claims) -> None:
    take(others, 2)
    assert on_cores(2) == ()
    assert core_remarks(LaneCpus(2)) == ()


def test_note_on_shared_cores_names_the_free_ones(others: Claims) -> None:
    take(others, 2)
    (remark,) = on_cores(3)
    assert "Other iosched processes use 1 of the 3 cores of this process" in remark
    assert remark.endswith("--threads 2 avoids those cores.")


def test_note_if_all_cores_are_claimed(others: Claims) -> None:
    take(others, 4)
    (remark,) = on_cores(2)
    assert remark.startswith("Other iosched processes use all cores, 2 of them together with this process")


def test_all_jobs_note_shared_cores(others: Claims, tmp_path: Path) -> None:
    take(others, 4)
    (remark,) = on_cores(2)
    model = fire()
    settings = OptimizeSettings(device="cpu", threads=2, strategy="sequential", profile_db=tmp_path / "p.db")
    assert remark in optimize(model, settings).notes
    assert remark in bench(model, None, names=["sequential"], threads=2, rounds=1, profile_db=tmp_path / "p.db").notes
    executor = open_executor(model, document(model), threads=2)
    assert executor.notes == (remark,)
    executor.close()


@pytest.mark.parametrize(
    ("quota", "threads", "words"),
    [(None, 9, None), (2.0, 2, None), (1.5, 2, "is 1.5 cores: 2 threads"), (0.5, 1, "is 0.5 cores")],
)
def test_note_on_more_threads_than_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int, words: str | None
) -> None:
    monkeypatch.setattr(remarks, "cpu_quota", lambda: quota)
    monkeypatch.setattr(remarks, "allowed_cpus", lambda: tuple(range(9)))
    found = thread_remarks(threads)
    assert len(found) == (words is not None)
    assert all(words in remark for remark in found if words)
    assert all(("use --threads 1" in remark) == (quota == 1.5) for remark in found)
    assert open_executor(fire(), None, threads=threads).notes == found


@pytest.mark.parametrize(("threads", "told"), [(1, False), (2, False), (3, True), (16, True)])
def test_note_on_more_threads_than_processors(monkeypatch: pytest.MonkeyPatch, threads: int, told: bool) -> None:
    """Other runtimes then have no more threads than processors: the comparison would be unfair."""
    for module in (remarks, device):
        monkeypatch.setattr(module, "allowed_cpus", lambda: (0, 1))
    found = thread_remarks(threads)
    words = f"{threads} threads share 2 processors and wait for each other: --threads 2 is faster."
    assert found == ((words,) if told else ())
    assert open_executor(fire(), None, threads=threads).notes == found
    with ProfileDatabase(None) as database:
        opened = device.CpuDevice().open(fire(), OpenSettings(threads=threads), database)
        assert opened.cost.lanes == threads
        assert opened.baselines.onnxruntime is not None
        assert opened.baselines.onnxruntime.threads == min(threads, 2)
        opened.close()


def test_devices_counts_claimed_cores(others: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{cpu_facts.__module__}.PROCESS", lane_cpus.PROCESS)
    monkeypatch.setattr(f"{cpu_facts.__module__}.allowed_cpus", lambda: (0, 1, 2, 3))
    assert cpu_facts().values["taken"] == 0
    assert ("cores", "4") in cpu_facts().rows
    take(others, 3)
    assert cpu_facts().values["taken"] == 3
    assert ("cores", "4, 3 of them used by other iosched processes") in cpu_facts().rows
