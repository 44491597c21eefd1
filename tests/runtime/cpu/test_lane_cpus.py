"""Lanes get processors that the process has claimed, or are unpinned if other processes are invisible."""

from __future__ import annotations

import gc
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire

from iosched.runtime.compare import compare
from iosched.runtime.cpu import lane_cpus as module
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE, Claims, LaneCpus, by_core, lane_cpus, unpinned
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.runtime.topology import Topology
from iosched.scheduler.baselines import greedy

FOUR = (0, 1, 2, 3)


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """Tests use claims of this name, and four processors that are separate physical cores."""
    found = f"iosched.test.{uuid4().hex}"
    monkeypatch.delenv(SHARE_VARIABLE)
    monkeypatch.setattr(module, "PROCESS", Claims(found))
    monkeypatch.setattr(module, "allowed_cpus", lambda: FOUR)
    monkeypatch.setattr(module, "siblings", lambda cpu: frozenset((cpu,)))
    monkeypatch.setattr(module, "is_time_shared", lambda: False)
    return found


def taken(name: str) -> list[int]:
    return [cpu for cpu, others in Claims(name).others(FOUR).items() if others]


def test_processors_are_claimed_when_needed_and_released(name: str) -> None:
    cpus = LaneCpus(2)
    assert (cpus.taken, taken(name)) == (None, [])
    assert (cpus.of(2), taken(name)) == ((0, 1), [0, 1])
    assert cpus.of(3) == (0, 1, 0)
    cpus.close()
    cpus.close()
    assert taken(name) == []


def test_processors_are_released_by_garbage_collection(name: str) -> None:
    cpus = LaneCpus(2)
    cpus.of(2)
    del cpus
    gc.collect()
    assert taken(name) == []


def test_another_process_has_different_processors(name: str) -> None:
    other = Claims(name).take(2, FOUR, lambda cpu: frozenset((cpu,)))
    assert LaneCpus(2).of(2) == (2, 3)
    assert other.n_shared == 0


def test_a_single_lane_claims_no_processor(name: str) -> None:
    assert LaneCpus(1).of(1) == LaneCpus(2).of(1) == (-1,)
    assert taken(name) == []


def test_under_a_quota_the_system_places_the_lanes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_time_shared", lambda: True)
    cpus = LaneCpus(2)
    assert (cpus.of(2), cpus.is_pinned, taken(name)) == ((-1, -2), False, [])


def test_unpinned_lanes_have_different_numbers_unless_they_share_processors(name: str) -> None:
    """Lanes with equal numbers do not spin in the compiled executor."""
    assert unpinned(4) == (-1, -2, -3, -4)
    assert unpinned(5) == (-1,) * 5


def test_the_environment_variable_lets_processes_share_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARE_VARIABLE, "1")
    other = Claims(name).take(2, FOUR, lambda cpu: frozenset((cpu,)))
    assert LaneCpus(2).of(2) == other.cpus == (0, 1)


def test_lanes_and_the_code_that_prepares_them_run_on_one_socket(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Claims(name).take(1, FOUR, lambda cpu: frozenset((cpu,)))
    sockets = frozenset((0, 1)), frozenset((2, 3))
    monkeypatch.setattr(module, "read_topology", lambda: Topology((), sockets))
    pinned: list[object] = []
    monkeypatch.setattr(module.os, "sched_setaffinity", lambda _, cpus: pinned.append(cpus))
    cpus = LaneCpus(2)
    with cpus.nearby():
        assert (other.cpus, cpus.of(2), pinned) == ((0,), (2, 3), [(2, 3)])
    assert len(pinned) == 2


def test_slow_processors_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two caches; processors 0, 1, 4 and 5 share one, and 0 and 4 are slow."""
    topology = Topology((frozenset((2, 3)), frozenset((0, 1, 4, 5))), (), frozenset((0, 4)))
    monkeypatch.setattr(module, "read_topology", lambda: topology)
    monkeypatch.setattr(module, "siblings", lambda cpu: frozenset((cpu & ~1, cpu | 1)))
    assert by_core(range(6)) == (2, 3, 1, 5, 0, 4)


def test_executors_without_processors_use_those_of_the_process(name: str) -> None:
    assert (lane_cpus(1), lane_cpus(3), lane_cpus(6)) == ((-1,), (0, 1, 2), (0, 1, 2, 3, 0, 1))
    assert lane_cpus(3, [7, 5]) == (7, 5, 7)


@given(st.sets(st.integers(0, 15), min_size=1), st.integers(1, 4))
def test_one_thread_of_every_physical_core_comes_first(cpus: set[int], n_cores: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "siblings", lambda cpu: frozenset(range(cpu % n_cores, 16, n_cores)))
        ordered = by_core(sorted(cpus))
    assert sorted(ordered) == sorted(cpus)
    n_used = len({cpu % n_cores for cpu in cpus})
    assert len({cpu % n_cores for cpu in ordered[:n_used]}) == n_used


def test_backends_of_a_process_have_the_same_processors_until_the_last_one_closes(name: str) -> None:
    """Another process has the first processor. Numbers above 1 need not exist: lanes then run anywhere."""
    other = Claims(name).take(1, FOUR, lambda cpu: frozenset((cpu,)))
    model = fire()
    with CpuBackend(model, lanes=2) as backend:
        assert taken(name) == [0]
        with CpuBackend(model, sharing=backend) as beside:
            beside.compile(greedy(beside.graph))
        assert taken(name) == [0, 1, 2]
        with CpuBackend(model, lanes=2) as third:
            third.compile(greedy(third.graph))
            assert third.cpus.of(2) == backend.cpus.of(2) == (1, 2)
        assert taken(name) == [0, 1, 2]
    assert taken(name) == [0]
    assert other.cpus == (0,)


@pytest.mark.parametrize("native", [None, False])
def test_lanes_without_processors_compute_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, native: bool | None
) -> None:
    monkeypatch.setattr(module, "is_time_shared", lambda: True)
    model = fire()
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, CpuBackend(model, lanes=2, native=native) as backend:
        compiled = backend.compile(greedy(backend.graph))
        assert compare(compiled.run(inputs), reference.run(inputs)).passed
        assert np.isfinite(compiled.time(inputs, 3)).all()
