"""`builtin:inception`: several paths in place of one node, as in figure 6 of Retiarii (OSDI'20).

The middle of three convolutions is replaced by two to five parallel paths, each a convolution, a depthwise convolution
or a pool: 3^2 + 3^3 + 3^4 + 3^5 = 360 ordered choices a chain. The base has three chains; other models work too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from iosched.models.graph import AttributeValue
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph_view import GraphView, Node
from iosched.models.mutation.mutator import Targets, chain
from iosched.models.spaces.cells import classified
from iosched.models.spaces.redraw import Choose
from iosched.models.spaces.space import Space
from iosched.models.zoo.network import Network

PATHS, OPERATIONS = (2, 3, 4, 5), ("conv", "dconv", "pool")
WAYS_TO_CHOOSE = sum(len(OPERATIONS) ** paths for paths in PATHS)
"""For one chain."""

_CHAIN = ("Conv", "Relu", "Conv", "Relu", "Conv")
_STEM_CHANNELS, _WIDTHS = 32, (32, 64, 128)


def chosen_ways(choose: Choose) -> tuple[str, ...]:
    """The number of paths, then the operation of each."""
    return tuple(choose(OPERATIONS, f"way{way}") for way in range(1, choose(PATHS, "paths") + 1))


@dataclass(frozen=True)
class InceptionMutator:
    """Replaces the middle of three convolutions by several paths."""

    name: str = "inception"

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """Chains of three convolutions with Relu between, whose middle one keeps the image's size."""
        return [targets for targets in chain(*_CHAIN)(graph) if _fits(graph, *targets)]

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """Replace the middle convolution by the chosen paths."""
        _, before, middle, activation, last = targets
        filters = edit.graph.shape(middle.name)[1]
        ways = [
            _way(edit, operation, before.name, filters, f"{middle.name}/way{number}")
            for number, operation in enumerate(chosen_ways(edit.choose), start=1)
        ]
        joined = edit.create("Concat", ways, name=f"{middle.name}/ways", attributes={"axis": 1}).name
        out, _, *kernel = edit.graph.shape(last.inputs[1])
        weight = (out, edit.graph.shape(joined)[1], *kernel)
        edit.replace(last, inputs=(joined, *last.inputs[1:]), weights={1: weight})
        edit.delete(activation)
        edit.delete(middle)


def _fits(graph: GraphView, first: Node, before: Node, middle: Node, activation: Node, last: Node) -> bool:
    return graph.shape(before.name)[2:] == graph.shape(activation.name)[2:] and last.attributes.get("group", 1) == 1


def _convolution(edit: Edit, source: str, filters: int, name: str, groups: int = 1) -> str:
    channels = edit.graph.shape(source)[1]
    attributes: dict[str, AttributeValue] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "group": groups}
    weights = {1: (filters, channels // groups, 3, 3), 2: (filters,)}
    convolved = edit.create("Conv", (source,), name=f"{name}/conv", attributes=attributes, weights=weights)
    return edit.create("Relu", (convolved.name,), name=name).name


def _way(edit: Edit, operation: str, source: str, filters: int, name: str) -> str:
    """One path; a convolution has `filters` channels, other operations those of their input."""
    if operation == "pool":
        window = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1)}
        return edit.create("MaxPool", (source,), name=name, attributes=window).name
    if operation == "dconv":
        channels = edit.graph.shape(source)[1]
        return _convolution(edit, source, channels, name, groups=channels)
    return _convolution(edit, source, filters, name)


def draw(net: Network, pixels: int) -> onnx.ModelProto:
    """The base: three chains with pools between them; input (1, 3, pixels, pixels), output (1, 10) float32."""
    x = net.conv(net.input(3, pixels), _STEM_CHANNELS, 3, "stem", stride=2, padding=1)
    for number, width in enumerate(_WIDTHS, start=1):
        name = f"block{number}"
        x = net.max_pool(x, 2, f"{name}/pool", stride=2)
        x = net.conv(x, width, 1, f"{name}/first")
        x = net.conv(x, width, 3, f"{name}/middle", padding=1)
        x = net.conv(x, width, 1, f"{name}/last")
    return classified(net, x)


def _base(pixels: int) -> onnx.ModelProto:
    return draw(Network("inception"), pixels)


SPACE = Space("inception", (InceptionMutator(),), base=_base, size=WAYS_TO_CHOOSE ** len(_WIDTHS))
