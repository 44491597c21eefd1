"""Processes claim different processors, however they end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.cpu import lane_cpus as claims_module
from iosched.runtime.cpu.lane_cpus import MAX_CLAIMS, Claim, Claims


@pytest.fixture
def name() -> str:
    """A name that no other process has."""
    return f"iosched.test.{uuid4().hex}"


def alone(cpu: int) -> frozenset[int]:
    """Every processor is a separate physical core."""
    return frozenset((cpu,))


def in_pairs(cpu: int) -> frozenset[int]:
    """Processors 0 to 3 are the first threads of four physical cores, and 4 to 7 the second ones."""
    return frozenset((cpu % 4, cpu % 4 + 4))


EIGHT = tuple(range(8))


def test_processes_claim_different_processors_while_available(name: str) -> None:
    taken = [Claims(name).take(2, EIGHT, alone) for _ in range(4)]
    assert [claim.cpus for claim in taken] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [(claim.n_shared, claim.n_free) for claim in taken] == [(0, 8), (0, 6), (0, 4), (0, 2)]


def test_processors_with_the_fewest_claims_are_shared_first(name: str) -> None:
    processes = [Claims(name) for _ in range(4)]
    taken = [process.take(2, range(4), alone) for process in processes]
    assert [claim.cpus for claim in taken] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    assert [(claim.n_shared, claim.n_free) for claim in taken] == [(0, 4), (0, 2), (2, 0), (2, 0)]
    taken[1].release()
    assert Claims(name).take(2, range(4), alone).cpus == (2, 3)


def test_processors_are_shared_if_too_few_are_free(name: str) -> None:
    first, second = (Claims(name) for _ in range(2))
    held = first.take(3, range(4), alone)
    claim = second.take(2, range(4), alone)
    assert (claim.cpus, claim.n_shared, claim.n_free) == ((3, 0), 1, 1)
    assert held.n_shared == 0


def test_threads_of_unclaimed_physical_cores_are_preferred_to_those_of_claimed_ones(name: str) -> None:
    processes = [Claims(name) for _ in range(3)]
    taken = [process.take(lanes, EIGHT, in_pairs) for process, lanes in zip(processes, (2, 4, 1), strict=True)]
    assert [claim.cpus for claim in taken] == [(0, 1), (2, 3, 6, 7), (4,)]
    assert [(claim.n_shared, claim.n_free) for claim in taken] == [(0, 8), (0, 4), (1, 0)]


NEAR = [range(4), range(4, 8), range(8)]


def test_lanes_are_near_each_other_if_that_has_no_disadvantage(name: str) -> None:
    """Two caches of four processors each, on one socket."""
    processes = [Claims(name) for _ in range(4)]
    taken = [process.take(lanes, EIGHT, alone, NEAR) for process, lanes in zip(processes, (3, 2, 2, 4), strict=True)]
    assert [claim.cpus for claim in taken] == [(0, 1, 2), (4, 5), (6, 7), (3, 0, 1, 2)]
    assert Claims(name).take(6, EIGHT, alone, NEAR).cpus[:2] == (3, 4)


def test_a_physical_core_for_each_lane_is_preferred_to_nearness(name: str) -> None:
    """Each pair of cores shares a cache: with both threads of two cores all lanes would be near."""
    near = [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert Claims(name).take(4, EIGHT, in_pairs, near).cpus == (0, 1, 2, 3)


@given(st.lists(st.integers(1, 4), max_size=4), st.integers(1, 8), st.sampled_from([alone, in_pairs]))
def test_nearness_never_adds_a_shared_processor(
    before: list[int], lanes: int, siblings: Callable[[int], frozenset[int]]
) -> None:
    shared = []
    for near in ((), NEAR):
        name = f"iosched.test.{uuid4().hex}"
        others = [Claims(name).take(each, EIGHT, siblings) for each in before]
        claim = Claims(name).take(lanes, EIGHT, siblings, near)
        load = [sum(cpu in other.cpus for other in others) for cpu in claim.cpus]
        shared.append((sum(load), claim.n_shared, len({min(siblings(cpu)) for cpu in claim.cpus})))
    assert shared[0] == shared[1]


def test_more_lanes_than_processors_take_all_of_them_once(name: str) -> None:
    assert Claims(name).take(9, range(2), alone).cpus == (0, 1)


def test_all_claims_of_a_process_are_on_the_same_processors(name: str) -> None:
    other, process = Claims(name), Claims(name)
    there = other.take(2, EIGHT, alone)
    first = process.take(2, EIGHT, alone)
    there.release()
    more = process.take(3, EIGHT, alone)
    assert (first.cpus, more.cpus) == ((2, 3), (2, 3, 0))
    assert (more.n_shared, more.n_free) == (0, 8)
    first.release()
    assert Claims(name).others(EIGHT) == {cpu: int(cpu in (0, 2, 3)) for cpu in EIGHT}
    more.release()
    assert set(Claims(name).others(EIGHT).values()) == {0}


def test_disallowed_processors_are_not_claimed(name: str) -> None:
    process = Claims(name)
    held = process.take(2, (0, 1), alone)
    assert process.take(2, (1, 2), alone).cpus == (1, 2)
    assert held.cpus == (0, 1)


STEPS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(1, 5))), max_size=12)


@given(STEPS, st.integers(1, 6), st.sampled_from([alone, in_pairs]))
def test_processes_never_share_while_enough_processors_are_free(
    steps: list[tuple[int, int | None]], n_cpus: int, siblings: Callable[[int], frozenset[int]]
) -> None:
    """Four processes that take and release one claim each, compared with a list of owners."""
    name, cpus = f"iosched.test.{uuid4().hex}", range(n_cpus)
    processes = [Claims(name) for _ in range(4)]
    held: dict[int, Claim] = {}
    for index, lanes in steps:
        if index in held:
            held.pop(index).release()
        others = [cpu for claim in held.values() for cpu in claim.cpus]
        assert processes[index].others(cpus) == {cpu: others.count(cpu) for cpu in cpus}
        if lanes is None:
            continue
        claim = held[index] = processes[index].take(lanes, cpus, siblings)
        free = {cpu for cpu in cpus if siblings(cpu).isdisjoint(others)}
        assert len(claim.cpus) == len(set(claim.cpus)) == min(lanes, n_cpus)
        assert claim.n_free == len(free)
        assert claim.n_shared == len(set(claim.cpus) - free)
        if lanes <= len(free):
            assert claim.n_shared == 0
        least = sorted(map(others.count, cpus))[: len(claim.cpus)]
        assert sorted(map(others.count, claim.cpus)) == least
    for claim in held.values():
        claim.release()
    assert set(Claims(name).others(cpus).values()) == {0}


def test_processes_claiming_concurrently_get_different_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees all processors as free."""
    monkeypatch.setattr(Claims, "others", lambda self, cpus: dict.fromkeys(cpus, 0))
    taken = [Claims(name).take(2, range(4), alone) for _ in range(3)]
    assert [claim.cpus for claim in taken] == [(0, 1), (2, 3), (0, 1)]
    assert [claim.n_shared for claim in taken] == [0, 0, 2]


def test_more_processes_than_slots_share(name: str) -> None:
    taken = [Claims(name).take(1, (0,), alone) for _ in range(MAX_CLAIMS + 2)]
    assert [claim.cpus for claim in taken] == [(0,)] * (MAX_CLAIMS + 2)
    assert [claim.n_shared for claim in taken] == [0] + [1] * (MAX_CLAIMS + 1)
    for claim in taken:
        claim.release()


@pytest.mark.parametrize("error", [errno.EPERM, errno.EMFILE, errno.EAFNOSUPPORT])
@pytest.mark.parametrize("refused", ["socket", "bind"])
def test_without_sockets_the_first_processors_are_used(
    name: str, monkeypatch: pytest.MonkeyPatch, error: int, refused: str
) -> None:
    class Refused(socket.socket):
        def __init__(self, *words: int) -> None:
            if refused == "socket":
                raise OSError(error, "refused")
            super().__init__(*words)

        def bind(self, address: object) -> None:
            raise OSError(error, "refused")

    monkeypatch.setattr(claims_module.socket, "socket", Refused)
    for _ in range(2):
        claim = Claims(name).take(2, range(4), alone)
        assert (claim.cpus, claim.n_shared, claim.n_free) == ((0, 1), 0, 4)
        claim.release()


PROGRAM = """
import os, subprocess, sys
from iosched.runtime.cpu.lane_cpus import Claims
claims = Claims(sys.argv[1])
os.register_at_fork(after_in_child=claims.forget)
claim = claims.take(2, range(4), lambda cpu: frozenset((cpu,)))
"""
WAIT = "print(claim.cpus, flush=True); sys.stdin.read()"


@pytest.fixture
def started(name: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that claims two of four processors and then runs the given code; ends all of them."""
    running: list[subprocess.Popen[str]] = []

    def start(then: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PROGRAM + then, name]
        running.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_killed_process_releases_its_claims(name: str, started: Callable) -> None:
    process = started(WAIT)
    assert line_of(process) == "(0, 1)"
    assert Claims(name).others(range(4)) == {0: 1, 1: 1, 2: 0, 3: 0}
    assert line_of(started(WAIT)) == "(2, 3)"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert line_of(started(WAIT)) == "(0, 1)"


def test_a_forked_child_inherits_no_claims_and_makes_its_own(name: str, started: Callable) -> None:
    """It neither releases the parent's claims nor keeps them when the parent ends."""
    process = started(
        "if os.fork(): sys.stdin.readline(); os._exit(0)\n"
        "print(claim.cpus, flush=True)\n"
        "claim.release()\n"
        "claim = claims.take(2, range(4), lambda cpu: frozenset((cpu,)))\n"
        "print(claim.cpus, os.getpid(), flush=True)\n"
        "import signal; signal.pause()\n"
    )
    assert line_of(process) == "(0, 1)"
    *taken, child = line_of(process).rsplit(" ", 1)
    assert taken == ["(2, 3)"]
    try:
        assert Claims(name).others(range(4)) == {0: 1, 1: 1, 2: 1, 3: 1}
        assert process.stdin is not None
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait() == 0
        assert Claims(name).others(range(4)) == {0: 0, 1: 0, 2: 1, 3: 1}
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_an_executed_program_inherits_no_claims(name: str, started: Callable) -> None:
    process = started("print(1, flush=True); os.execvp('sh', ['sh', '-c', 'echo 2; cat'])")
    assert (line_of(process), line_of(process)) == ("1", "2")
    assert set(Claims(name).others(range(4)).values()) == {0}


def test_a_fork_while_another_thread_claims_does_not_block_the_child(started: Callable) -> None:
    process = started(
        "import signal, threading\n"
        "threading.Thread(target=claims._lock.acquire).start()\n"
        "if os.fork() == 0:\n"
        "    signal.alarm(20)\n"
        "    print(claims.take(1, (3,), lambda cpu: frozenset((cpu,))).cpus, flush=True)\n"
    )
    assert line_of(process) == "(3,)"
