"""The devices of a Ray cluster, as its nodes tell their resources, and what to ask Ray for to get one.

Ray calls a GPU by a word that it takes out of what the driver calls it: "V100", "T4", "A100", but "GTX-1080",
"GeForce-GTX-1080" or "TITAN-Xp"; it knows one kind of GPU on a node. A machine whose CPU may be measured says so by a
resource of its own, of which it has one, so that no two workers measure there at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from iosched.jobs.pool.transport import Place
from iosched.profiler.devices.gpus import spec_of

CPU_RESOURCE = "iosched_cpu"
_ACCELERATOR = "accelerator_type:"
_LEAST_PART_OF_ID = 6


@dataclass(frozen=True)
class Node:
    """A machine of a cluster.

    Attributes:
        id: Ray's name of it.
        host: the machine's own name.
        address: where people find it.
        resources: Ray's names of what it has, and how much.
    """

    id: str
    host: str
    address: str
    resources: Mapping[str, float]

    @property
    def accelerator(self) -> str | None:
        """Ray's word for its GPUs; None where it has none, or none that Ray has a word for."""
        names = (name.removeprefix(_ACCELERATOR) for name in self.resources if name.startswith(_ACCELERATOR))
        return next(names, None) if self.resources.get("GPU", 0) >= 1 else None


def nodes_of(told: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The living nodes in what `ray.nodes()` returns."""
    return tuple(
        Node(entry["NodeID"], entry.get("NodeManagerHostname") or address, address, entry.get("Resources") or {})
        for entry in told
        if entry["Alive"] and (address := entry["NodeManagerAddress"])
    )


def named(nodes: Sequence[Node], before: Mapping[str, str]) -> dict[str, str]:
    """A name for each node by its id: that of its machine, with a part of the id where another node has that name.

    Args:
        nodes: all that live.
        before: the names that were given before, which nodes keep: workers are known by them.
    """
    found = {node.id: before[node.id] for node in nodes if node.id in before}
    for node in sorted(nodes, key=lambda node: node.id):
        if node.id not in found:
            found[node.id] = next(name for name in _names_for(node) if name not in found.values())
    return found


def places_on(nodes: Sequence[Node], called: Mapping[str, str]) -> dict[Place, Node]:
    """What can be measured on each node, in the order of their names.

    A node that offers nothing has its CPU, of which it has none to offer, so that people see why.
    A GPU that the table of GPUs does not have is called by Ray's word, in lower case, which no device is called.

    Args:
        nodes: all that live.
        called: their names, see `named`.
    """
    return {place: node for node in sorted(nodes, key=lambda node: called[node.id]) for place in _places(node, called)}


def gpu_key(accelerator: str) -> str:
    """The key of the GPU that Ray calls so; Ray's word in lower case where the table of GPUs does not have it."""
    spec = spec_of(accelerator)
    return accelerator.lower() if spec is None else spec.key


def request(place: Place, node: Node) -> dict[str, object]:
    """What an actor asks Ray for to have one device of `place` for itself, beside being on `node`.

    An accelerator's type alone asks for a thousandth of it, which excludes nobody: the GPU is asked for too.
    """
    if place.device == "cpu":
        return {"num_cpus": 0, "resources": {CPU_RESOURCE: 1}}
    return {"num_cpus": 0, "num_gpus": 1, "accelerator_type": node.accelerator}


def _places(node: Node, called: Mapping[str, str]) -> Iterable[Place]:
    place = Place(called[node.id], node.address, "cpu", threads=max(1, int(node.resources.get("CPU", 1))))
    if node.accelerator is not None:
        yield replace(place, device=gpu_key(node.accelerator), count=int(node.resources["GPU"]))
    if node.resources.get(CPU_RESOURCE, 0) >= 1:
        yield place
    elif node.accelerator is None:
        yield replace(place, count=0)


def _names_for(node: Node) -> Iterable[str]:
    yield node.host
    yield from (f"{node.host}-{node.id[:length]}" for length in range(_LEAST_PART_OF_ID, len(node.id) + 1))
