"""Which processors are near each other, on simulated machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime import topology as module
from iosched.runtime.topology import Topology, default_threads, lanes_in_a_cache, read_topology, topology_of

Sets = Sequence[Sequence[int]]


def text_of(cpus: Sequence[int]) -> str:
    """A list of processors as Linux writes it."""
    return ",".join(map(str, cpus)) + "\n"


def made_up(
    root: Path,
    *,
    packages: Sets,
    nodes: Sets,
    caches: Sets,
    capacity: Callable[[int], int] | None = None,
    atoms: Sequence[int] = (),
) -> Topology:
    """The topology of a machine whose files lie under `root`."""
    folder = root / "sys/devices/system"
    files = {f"node/node{number}/cpulist": text_of(node) for number, node in enumerate(nodes)}
    files["cpu/online"] = text_of([cpu for package in packages for cpu in package])
    for package in packages:
        for cpu in package:
            files[f"cpu/cpu{cpu}/topology/package_cpus_list"] = text_of(package)
            files |= {f"cpu/cpu{cpu}/cache/index0/{name}": text for name, text in (("level", "1"), ("size", "32K"))}
            files[f"cpu/cpu{cpu}/cache/index0/shared_cpu_list"] = text_of([cpu])
            if capacity is not None:
                files[f"cpu/cpu{cpu}/cpu_capacity"] = f"{capacity(cpu)}\n"
    for cache in caches:
        for cpu in cache:
            files[f"cpu/cpu{cpu}/cache/index3/level"] = "3\n"
            files[f"cpu/cpu{cpu}/cache/index3/shared_cpu_list"] = text_of(cache)
    if atoms:
        files["../cpu_atom/cpus"] = text_of(atoms)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return topology_of(root)


def sets(*members: Sequence[int]) -> tuple[frozenset[int], ...]:
    return tuple(map(frozenset, members))


def test_two_sockets_with_two_caches_each(tmp_path: Path) -> None:
    """Processors 0 to 3 and 8 to 11 are the two threads of four cores of the first socket."""
    packages = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    caches = [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    found = made_up(tmp_path, packages=packages, nodes=packages, caches=caches)
    assert found == Topology(sets(*caches), sets(*packages))
    assert found.near(range(16)) == sets(*caches, *packages)
    assert found.near([0, 1, 2, 3]) == sets([0, 1], [2, 3], [0, 1, 2, 3])
    assert found.near([0, 1]) == ()
    assert found.together(range(16)) == {*packages[0]}
    assert found.together(range(3, 16)) == {*packages[1]}


def test_a_socket_may_have_several_memories(tmp_path: Path) -> None:
    found = made_up(tmp_path, packages=[range(4), range(4, 8)], nodes=[[0, 1], [2, 3], [4, 5], [6, 7]], caches=[])
    assert found.sockets == sets(range(4), range(4, 8))


@pytest.mark.parametrize("nodes", [[range(4)], []])
def test_packages_of_a_virtual_machine_are_no_sockets(tmp_path: Path, nodes: Sets) -> None:
    """By default some make each of their processors a package of its own, all on one memory."""
    found = made_up(tmp_path, packages=[[0], [1], [2], [3]], nodes=nodes, caches=[])
    assert found.together(range(4)) == {0, 1, 2, 3}
    assert len(found.sockets) < 2


def test_a_memory_without_processors_is_ignored(tmp_path: Path) -> None:
    found = made_up(tmp_path, packages=[[0, 1]], nodes=[[0, 1], []], caches=[])
    assert found.sockets == sets([0, 1])


def test_slow_cores_by_capacity(tmp_path: Path) -> None:
    """Four fast cores, two of which boost a little higher, and four slow ones."""
    capacity = [1024, 1024, 980, 980, 400, 400, 400, 400].__getitem__
    found = made_up(tmp_path, packages=[range(8)], nodes=[range(8)], caches=[range(8)], capacity=capacity)
    assert found.slow == {4, 5, 6, 7}
    assert found.together(range(8)) == {0, 1, 2, 3}
    assert found.near(range(8)) == sets(range(4), range(4))
    assert found.together([5, 6]) == {5, 6}


def test_slow_cores_by_their_list(tmp_path: Path) -> None:
    found = made_up(tmp_path, packages=[range(6)], nodes=[range(6)], caches=[range(6)], atoms=[4, 5])
    assert found.slow == {4, 5}


def test_the_last_cache_is_that_of_the_highest_level(tmp_path: Path) -> None:
    """Without a third level each core has its own."""
    assert made_up(tmp_path, packages=[[0, 1]], nodes=[[0, 1]], caches=[]).caches == sets([0], [1])


def test_a_machine_that_linux_does_not_describe(tmp_path: Path) -> None:
    found = topology_of(tmp_path)
    assert found == Topology()
    assert (found.near([0, 1]), found.together([0, 1])) == ((), {0, 1})


def test_threads_by_default_are_on_fast_cores_of_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "allowed_cpus", lambda: tuple(range(2, 12)))
    monkeypatch.setattr(module, "cpu_count", lambda: 10)
    topology = Topology(sets([0, 1, 2, 3], [4, 5, 6, 7], range(8, 12)), sets(range(8), range(8, 12)), frozenset([6, 7]))
    monkeypatch.setattr(module, "read_topology", lambda: topology)
    monkeypatch.setattr(module, "siblings", lambda cpu: frozenset((cpu & ~1, cpu | 1)))
    assert (default_threads(), lanes_in_a_cache()) == (4, 2)
    monkeypatch.setattr(module, "cpu_count", lambda: 3)
    assert default_threads() == 3


CPUS = st.frozensets(st.integers(0, 15))


@given(st.lists(CPUS, max_size=4), st.lists(CPUS, max_size=3), CPUS, CPUS)
def test_near_processors_are_a_subset_of_the_requested_ones(
    caches: list[frozenset[int]], sockets: list[frozenset[int]], slow: frozenset[int], cpus: frozenset[int]
) -> None:
    topology = Topology(tuple(caches), tuple(sockets), slow)
    together = topology.together(cpus)
    assert together <= cpus
    assert bool(together) is bool(cpus)
    assert together.isdisjoint(slow) or cpus <= slow
    for own in topology.near(cpus):
        assert own
        assert own <= cpus


def test_this_machine() -> None:
    topology = read_topology()
    assert topology is read_topology()
    assert 1 <= default_threads() <= len(module.allowed_cpus())
