"""The places of a cluster: devices of Ray nodes, and shares of this machine's processors for `--cluster local:N`.

Ray derives one GPU type per node from the driver's name of the GPU ("V100", "A100", but "GTX-1080", "GeForce-GTX-1080"
or "TITAN-Xp"). A machine offers its CPU as one unit of a custom resource, so that only one worker measures on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from platform import node as host_name
from typing import Any

from iosched.jobs.pool.transport import Place
from iosched.models.errors import UsageError
from iosched.profiler.devices.gpus import spec_of
from iosched.runtime.cores import allowed_cpus, cpu_count, siblings

CPU_RESOURCE = "iosched_cpu"
_ACCELERATOR = "accelerator_type:"
_LEAST_PART_OF_ID = 6


@dataclass(frozen=True)
class ClusterNode:
    """A machine of a cluster, with amounts by Ray's resource names."""

    id: str
    host: str
    address: str
    resources: Mapping[str, float]

    @property
    def accelerator(self) -> str | None:
        """Ray's type of its GPUs; None without a typed GPU."""
        names = (name.removeprefix(_ACCELERATOR) for name in self.resources if name.startswith(_ACCELERATOR))
        return next(names, None) if self.resources.get("GPU", 0) >= 1 else None


def nodes_of(entries: Iterable[Mapping[str, Any]]) -> tuple[ClusterNode, ...]:
    """Returns the live nodes among the entries of `ray.nodes()`."""
    return tuple(
        ClusterNode(entry["NodeID"], entry.get("NodeManagerHostname") or address, address, entry.get("Resources") or {})
        for entry in entries
        if entry["Alive"] and (address := entry["NodeManagerAddress"])
    )


def named(nodes: Sequence[ClusterNode], before: Mapping[str, str]) -> dict[str, str]:
    """Returns node names by ID: the host name, with a prefix of the ID if another node has the same host name.

    Names in `before` do not change because they identify workers.
    """
    found = {node.id: before[node.id] for node in nodes if node.id in before}
    for node in sorted(nodes, key=lambda node: node.id):
        if node.id not in found:
            found[node.id] = next(name for name in _names_for(node) if name not in found.values())
    return found


def places_on(nodes: Sequence[ClusterNode], called: Mapping[str, str]) -> dict[Place, ClusterNode]:
    """Returns the places of all nodes, sorted by name. `called` holds the names.

    A node that offers no device has a CPU place of count 0, so that a survey can report it.
    """
    return {place: node for node in sorted(nodes, key=lambda node: called[node.id]) for place in _places(node, called)}


def gpu_key(accelerator: str) -> str:
    """Returns the key of a GPU of Ray's type; for an unknown GPU, the type in lower case."""
    spec = spec_of(accelerator)
    return accelerator.lower() if spec is None else spec.key


def request(place: Place, node: ClusterNode) -> dict[str, object]:
    """Returns the options of an actor that has one device of `place` to itself.

    An accelerator type alone requests 0.001 of it, which excludes no other actor, so the GPU is requested too.
    """
    if place.device == "cpu":
        return {"num_cpus": 0, "resources": {CPU_RESOURCE: 1}}
    return {"num_cpus": 0, "num_gpus": 1, "accelerator_type": node.accelerator}


def _places(node: ClusterNode, called: Mapping[str, str]) -> Iterable[Place]:
    place = Place(called[node.id], node.address, "cpu", threads=max(1, int(node.resources.get("CPU", 1))))
    if node.accelerator is not None:
        yield replace(place, device=gpu_key(node.accelerator), count=int(node.resources["GPU"]))
    if node.resources.get(CPU_RESOURCE, 0) >= 1:
        yield place
    elif node.accelerator is None:
        yield replace(place, count=0)


def _names_for(node: ClusterNode) -> Iterable[str]:
    yield node.host
    yield from (f"{node.host}-{node.id[:length]}" for length in range(_LEAST_PART_OF_ID, len(node.id) + 1))


def local_places(workers: int, threads: int | None) -> tuple[Place, ...]:
    """Returns the places of a local cluster, within this process's processors and CPU quota.

    Raises:
        UsageError: the workers need more threads than there are processors.
    """
    return divided(workers, threads, allowed_cpus(), cpu_count(), siblings)


def divided(
    workers: int, threads: int | None, cpus: Sequence[int], most: int, siblings_of: Callable[[int], Collection[int]]
) -> tuple[Place, ...]:
    """Gives each worker `len(cpus) // workers` processors of its own, and keeps physical cores whole if possible.

    Under a quota a worker may have fewer threads than processors.

    Args:
        threads: threads per worker; None for `most // workers`.
        most: maximum number of threads for the processors and the quota.
        siblings_of: returns the processors of the same physical core, including the argument.

    Raises:
        UsageError: the workers need more than `most` threads.
    """
    each = threads if threads is not None else most // workers
    if each < 1 or workers * each > most:
        wanted = "one thread each" if threads is None else f"{each} thread{'s' if each > 1 else ''} each"
        raise UsageError(
            f"--cluster local:{workers} with {wanted} needs {workers * max(each, 1)} cores, and this process may use"
            f" {most}: take fewer workers{'' if threads in (None, 1) else ' or fewer --threads'}"
        )
    share = len(cpus) // workers
    ordered = sorted(cpus, key=lambda cpu: (min(set(siblings_of(cpu)) & set(cpus), default=cpu), cpu))
    machine = host_name() or "localhost"
    return tuple(
        Place(machine, "127.0.0.1", "cpu", threads=each, cores=tuple(sorted(ordered[start : start + share])))
        for start in range(0, workers * share, share)
    )
