"""Which nodes compute and read each tensor of a graph that changes node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from iosched.models.wiring import reads, writes


@dataclass(frozen=True)
class Wires:
    """Both ways along the edges. A change copies two tables, and looks at no other node.

    Attributes:
        producers: for every computed tensor the name of its node.
        readers: for every tensor that is read the names of the nodes that read it, each once.
    """

    producers: Mapping[str, str]
    readers: Mapping[str, tuple[str, ...]]

    def joined(self, node: onnx.NodeProto) -> Wires:
        """With one node more."""
        name = writes(node)[0]
        read = {tensor: (*self.readers.get(tensor, ()), name) for tensor in reads(node)}
        return Wires({**self.producers, **dict.fromkeys(writes(node), name)}, {**self.readers, **read})

    def without(self, node: onnx.NodeProto) -> Wires:
        """With one node fewer."""
        producers, readers = dict(self.producers), dict(self.readers)
        for tensor in writes(node):
            del producers[tensor]
        for tensor in dict.fromkeys(reads(node)):
            left = tuple(name for name in readers.pop(tensor) if name != writes(node)[0])
            if left:
                readers[tensor] = left
        return Wires(producers, readers)


def wires_of(protos: Mapping[str, onnx.NodeProto]) -> Wires:
    """The wires of nodes by name. O(nodes + edges)."""
    producers: dict[str, str] = {}
    readers: dict[str, dict[str, None]] = {}
    for name, node in protos.items():
        producers.update(dict.fromkeys(writes(node), name))
        for tensor in reads(node):
            readers.setdefault(tensor, {})[name] = None
    return Wires(producers, {tensor: tuple(names) for tensor, names in readers.items()})
