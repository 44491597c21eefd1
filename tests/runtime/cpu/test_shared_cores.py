"""Models on blocks of the same cores: right numbers at the same time, on shared threads, weights and kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from shipped import document
from small_models import branches, chain, data, feeds_for, loaded, run

from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cpu import lane_cpus
from iosched.runtime.cpu import shared_cores as module
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE, Claims
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.shared_cores import CpuCores, on_cpus
from iosched.runtime.executor import Executor
from iosched.runtime.shared_cores import Block

BLOCKS: tuple[Block, ...] = ((0, 1), (0,), (1,), (2,))


@pytest.fixture(params=["pinned", "under a quota"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuCores]:
    """Two cores, regardless of the claims of other processes."""
    monkeypatch.setenv(SHARE_VARIABLE, "1")
    monkeypatch.setattr(lane_cpus, "is_time_shared", lambda: request.param == "under a quota")
    cores = CpuCores(2)
    assert (min(cores._cpus) < 0) == (request.param == "under a quota")
    yield cores
    cores.close()


def opened(cores: CpuCores, model: Model, shipped: str | None) -> dict[Block, Executor]:
    own = None if shipped is None else document(model, shipped=shipped)
    return dict(cores.executors(model, own, BLOCKS))


@pytest.mark.parametrize("shipped", [None, "iosched", "reference"])
def test_each_block_computes_the_same_as_onnxruntime_while_others_run(cores: CpuCores, shipped: str | None) -> None:
    protos = [branches(), chain(), branches(channels=4)]
    models = [loaded(each) for each in protos]
    feeds = [feeds_for(each) for each in models]
    executors = [opened(cores, each, shipped) for each in models]
    assert {each.by for found in executors for each in found.values()} == {
        "schedule" if shipped == "iosched" else "reference"
    }
    expected = [run(data(proto), own) for proto, own in zip(protos, feeds, strict=True)]
    alone = [
        {block: each.run(own) for block, each in found.items()} for found, own in zip(executors, feeds, strict=True)
    ]

    def many(block: Block) -> None:
        for number in range(150):
            which = number % 3
            found = executors[which][block].run(feeds[which])
            assert compare(found, expected[which]).passed
            np.testing.assert_array_equal(found["y"], alone[which][block]["y"])

    many((0, 1))
    with ThreadPoolExecutor(3) as callers:
        list(callers.map(many, BLOCKS[1:]))
    for found in executors:
        for each in found.values():
            each.close()


@pytest.mark.skipif(not available(), reason="the compiled executor is missing")
def test_plans_for_other_cores_share_weights_and_kernels(cores: CpuCores) -> None:
    model = loaded(branches())
    found = opened(cores, model, "iosched")
    again = opened(cores, model, "iosched")
    kernels = [_kernels(each) for each in (*found.values(), *again.values())]
    known = {id(array) for own in kernels for kernel in own for _, array in kernel.program.weights}
    known |= {id(array) for own in kernels for kernel in own if kernel.invoked for array in kernel.invoked.constants}
    assert len(known) <= len(model.graph.operators) + 1
    assert {id(each) for each in kernels[1]} == {id(each) for each in kernels[2]} == {id(each) for each in kernels[3]}
    runtimes = {id(each.handle) for each in cores._runtimes.values()}
    assert len(runtimes) == len(BLOCKS), "both models run on the same threads"


def test_shared_cores_are_claimed_until_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"iosched.test.{uuid4().hex}"
    monkeypatch.delenv(SHARE_VARIABLE, raising=False)
    monkeypatch.setattr(lane_cpus, "PROCESS", Claims(name))
    monkeypatch.setattr(lane_cpus, "allowed_cpus", lambda: (0, 1))
    monkeypatch.setattr(lane_cpus, "is_time_shared", lambda: False)
    cores = CpuCores(2)
    assert Claims(name).others((0, 1)) == {0: 1, 1: 1}
    assert not any("Other iosched processes" in note for note in cores.notes)
    cores.close()
    assert Claims(name).others((0, 1)) == {0: 0, 1: 0}


def test_a_single_threaded_session_is_opened_once_for_all_blocks(cores: CpuCores) -> None:
    found = opened(cores, loaded(chain()), None)
    sessions = [found[block].runnable.runnable for block in BLOCKS]  # type: ignore[attr-defined]
    assert sessions[1] is sessions[2] is sessions[3]
    assert sessions[0] is not sessions[1]
    assert [each.settings.intra_threads for each in sessions] == [2, 1, 1, 1]


def test_the_threads_of_a_session_run_on_other_processors_than_its_caller(
    cores: CpuCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[tuple[int, ...]] = []

    @contextmanager
    def noted(cpus: Sequence[int]) -> Iterator[None]:
        places.append(tuple(cpus))
        yield

    monkeypatch.setattr(module, "on_cpus", noted)
    model = loaded(chain())
    found = opened(cores, model, None)
    first, second = cores._cpus
    assert places == [(second,), (first,)]  # the session of two threads, and the one of none
    places.clear()
    for block in BLOCKS:
        found[block].run(feeds_for(model))
    assert places == [(first,), (first,), (second,), (first, second)]


def test_on_cpus_restores_the_affinity_of_the_calling_thread() -> None:
    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    with on_cpus((first,)):
        assert os.sched_getaffinity(0) == {first}
    assert os.sched_getaffinity(0) == allowed
    with on_cpus((100_000,)):  # which the process may not use
        assert os.sched_getaffinity(0) == allowed
    with on_cpus((-1, -2)):
        assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize(
    ("count", "allowed", "has_quota", "overlaps"),
    [(2, (0, 1), False, True), (2, (0, 1), True, False), (1, (0, 1), False, False), (1, (0,), False, True)],
)
def test_blocks_overlap_only_on_all_allowed_cores_without_a_quota(
    monkeypatch: pytest.MonkeyPatch, count: int, allowed: Any, has_quota: bool, overlaps: bool
) -> None:
    monkeypatch.setattr(module, "allowed_cpus", lambda: allowed)
    monkeypatch.setattr(module, "is_time_shared", lambda: has_quota)
    assert CpuCores(count).overlaps is overlaps


def _kernels(executor: Executor) -> Any:
    compiled = executor.runnable
    return getattr(compiled, "runnable", compiled).executor.kernels  # type: ignore[attr-defined]
