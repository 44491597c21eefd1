"""The protocol of mutators (Retiarii, OSDI 2020, section 3), and common targets, layers and mutators.

Layers have names: "conv3", "dconv5_relu", "max_pool3", "identity".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Protocol

from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue
from iosched.models.mutation.edit import Edit, Shape
from iosched.models.mutation.graph_view import GraphView, Node

Targets = tuple[Node, ...]
"""The nodes that one call of a mutator changes, in the order of the query."""

Match = Callable[[GraphView], Sequence[Targets]]
"""Finds all targets in a graph; they are disjoint."""

_NAME = re.compile(r"(conv|dconv|max_pool|average_pool)([1-9]\d?)(_relu)?|identity|relu")

KEEP = "keep"
"""The choice to leave a target unchanged."""


class Mutator(Protocol):
    """Finds targets in a graph, and changes the graph at each of them.

    Both methods must be deterministic functions of graph and choices.
    """

    @property
    def name(self) -> str:
        """The prefix of its choices, unique in a space."""

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """All places to change; `by_type`, `by_name` and `chain` are common ones."""

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """Change the graph at one of these places.

        Afterwards, shapes must fit, and deleted tensors must have no consumers. Nodes that no output needs are then
        deleted.
        """


def by_type(*types: str) -> Match:
    """Each node of one of these types ("Conv", "domain::Type")."""
    return lambda graph: [(node,) for node in graph.nodes if node.type in types]


def by_name(*patterns: str) -> Match:
    """Each node with one of these names; wildcards are allowed ("stage3/*")."""
    return lambda graph: [(node,) for node in graph.nodes if any(fnmatchcase(node.name, one) for one in patterns)]


def chain(*types: str) -> Match:
    """Sequences of nodes of these types, each the only consumer of the one before.

    Of overlapping ones, the first is taken.
    """
    return lambda graph: list(_chains(graph, types))


def _chains(graph: GraphView, types: Sequence[str]) -> Iterator[Targets]:
    taken: set[str] = set()
    for first in graph.nodes if types else ():
        found = [first]
        while len(found) < len(types) and (after := _only_reader(graph, found[-1])) is not None:
            found.append(after)
        names = {node.name for node in found}
        if [node.type for node in found] == [*types] and taken.isdisjoint(names):
            taken |= names
            yield tuple(found)


def _only_reader(graph: GraphView, node: Node) -> Node | None:
    found = {reader.name: reader for tensor in node.outputs if tensor for reader in graph.consumers(tensor)}
    is_returned = not set(node.outputs).isdisjoint(graph.outputs.values())
    return next(iter(found.values())) if len(found) == 1 and not is_returned else None


class Layer(Protocol):
    """Computes a tensor of one shape from a tensor of another."""

    def __call__(self, edit: Edit, source: str, shape: Shape, name: str) -> str:
        """Add nodes that compute a tensor of `shape` from `source`, and return its name.

        Both are (batch, channels, sizes) with one batch; `name` is the prefix of the nodes' names.

        Raises:
            UsageError: there is no such layer between these shapes.
        """


@dataclass(frozen=True)
class _Matching:
    name: str
    where: Match

    def match(self, graph: GraphView) -> Sequence[Targets]:
        """See `Mutator`."""
        return self.where(graph)


@dataclass(frozen=True)
class OperatorMutator(_Matching):
    """Replaces each match, a node or a chain, by one of several layers that keep the output's shape.

    Attributes:
        name: the prefix of its choices.
        where: the targets; see `Match`.
        layers: names of layers ("conv3", see `layer_of`), or own layers by name. "keep" leaves the match.
    """

    layers: Sequence[str] | Mapping[str, Layer]

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        chosen = edit.choose(list(self.layers), "layer")
        if chosen == KEEP:
            return
        layer = layers_of(self.layers if isinstance(self.layers, Mapping) else [chosen])[chosen]
        source = next((name for name in targets[0].inputs if edit.graph.is_computed(name)), None)
        if source is None:
            raise UsageError(f"node {targets[0].name!r} reads no computed tensor")
        old = targets[-1].outputs[0]
        edit.redirect(old, layer(edit, source, edit.graph.shape(old), f"{old}/{chosen}"))


@dataclass(frozen=True)
class InsertingMutator(_Matching):
    """Inserts up to `most` layers after each match; they keep the shape.

    Attributes:
        name: the prefix of its choices.
        where: the targets; see `Match`.
        layers: names of layers ("conv3", see `layer_of`), or own layers by name.
        most: the largest number of layers.
    """

    layers: Sequence[str] | Mapping[str, Layer]
    most: int = 1

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        layers, source = layers_of(self.layers), targets[-1].outputs[0]
        shape = edit.graph.shape(source)
        for index in range(edit.choose(range(self.most + 1), "inserted")):
            chosen = edit.choose(list(layers), f"layer{index}")
            before = edit.graph
            after = layers[chosen](edit, source, shape, f"{targets[-1].outputs[0]}/{chosen}")
            if after != source:
                new = [node for node in edit.graph.consumers(source) if not before.has_node(node.name)]
                edit.redirect(source, after, but=new)
                source = after


@dataclass(frozen=True)
class InputMutator(_Matching):
    """Connects each match to other tensors of the same type and shape, without cycles.

    Attributes:
        name: the prefix of its choices.
        where: the targets, of which the first node changes; see `Match`.
        most: the number of candidates: the present tensor, and those computed last before the node.
    """

    most: int = 4

    def mutate(self, targets: Targets, edit: Edit) -> None:
        """See `Mutator`."""
        for place, tensor in enumerate(targets[0].inputs):
            if edit.graph.is_computed(tensor):
                alike = itertools.islice(_alike(edit.graph, targets[0], tensor), self.most - 1)
                chosen = edit.choose([tensor, *alike], f"input{place}")
                if chosen != tensor:
                    edit.connect(chosen, targets[0], place)


def _alike(graph: GraphView, node: Node, tensor: str) -> Iterator[str]:
    """The tensors that `node` could read instead of `tensor`, the last computed first."""
    wanted, later = graph.spec(tensor), graph.editable.computed_from(node.name)
    if wanted is None or wanted.shape is None:
        return
    earlier = [name for one in graph.nodes if one.name not in later for name in one.outputs if name]
    for name in reversed([*graph.inputs, *earlier]):
        found = graph.spec(name)
        if name != tensor and found is not None and (found.dtype, found.shape) == (wanted.dtype, wanted.shape):
            yield name


def layer_of(name: str) -> Layer:
    """The layer of this name.

    | name | layer |
    |---|---|
    | `conv3` | convolution with a 3x3 kernel (or 3, or 3x3x3, by the tensor's rank) and a bias |
    | `dconv3` | depthwise convolution with that kernel, and a pointwise one |
    | `max_pool3`, `average_pool3` | pool, then a 1x1 convolution if the number of channels changes |
    | `identity` | nothing; a 1x1 convolution if the shape changes |
    | `relu` | Relu of a tensor of the same shape |

    The suffix "_relu" adds a Relu.

    Raises:
        UsageError: there is none.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        known = "conv3, dconv3, max_pool3, average_pool3 (or another size), each also with _relu, identity and relu"
        raise UsageError(f"there is no layer {name!r}; choose from {known}")
    if found[1] is None:
        return _relu if name == "relu" else _identity
    kinds = {"conv": _conv, "dconv": _depthwise}
    pools = {"max_pool": "MaxPool", "average_pool": "AveragePool"}
    layer = kinds[found[1]] if found[1] in kinds else partial(_pool, pools[found[1]])
    made = partial(layer, int(found[2]))
    return partial(_with_relu, made) if found[3] else made


def layers_of(layers: Sequence[str] | Mapping[str, Layer]) -> dict[str, Layer]:
    """Layers by name."""
    return dict(layers) if isinstance(layers, Mapping) else {name: layer_of(name) for name in layers}


def _depthwise(kernel: int, edit: Edit, source: str, shape: Shape, name: str) -> str:
    have = _compatible_shape(edit, source, shape)
    spread = _conv(kernel, edit, source, (*have[:2], *shape[2:]), f"{name}/depthwise", groups=have[1])
    return _conv(1, edit, spread, shape, name)


def _pool(kind: str, kernel: int, edit: Edit, source: str, shape: Shape, name: str) -> str:
    have = _compatible_shape(edit, source, shape)
    attributes = _windows(have[2:], shape[2:], kernel)
    called = name if have[1] == shape[1] else f"{name}/pool"
    pool = edit.create(kind, [source], name=called, attributes=attributes).name
    return pool if have[1] == shape[1] else _conv(1, edit, pool, shape, name)


def _identity(edit: Edit, source: str, shape: Shape, name: str) -> str:
    return source if edit.graph.shape(source) == shape else _conv(1, edit, source, shape, name)


def _relu(edit: Edit, source: str, shape: Shape, name: str) -> str:
    if edit.graph.shape(source) != shape:
        raise UsageError(f"a Relu of {source!r} has shape {edit.graph.shape(source)}, not {shape}")
    return edit.create("Relu", [source], name=name).name


def _with_relu(layer: Layer, edit: Edit, source: str, shape: Shape, name: str) -> str:
    return edit.create("Relu", [layer(edit, source, shape, f"{name}/linear")], name=name).name


def window(size: int, wanted: int, kernel: int) -> tuple[int, int, int] | None:
    """A stride, and the paddings at both ends, by which a window of `kernel` turns `size` into `wanted`.

    The least stride with a padding smaller than the kernel; None if there is none.
    """
    for stride in range(1, size + 1):
        padding = max((wanted - 1) * stride + kernel - size, 0)
        whole = size + padding
        if padding <= 2 * (kernel - 1) and whole >= kernel and (whole - kernel) // stride + 1 == wanted:
            return stride, padding // 2, padding - padding // 2
    return None


def _windows(sizes: Shape, wanted: Shape, kernel: int) -> dict[str, AttributeValue]:
    found = [window(size, result, kernel) for size, result in zip(sizes, wanted, strict=True)]
    known = [item for item in found if item is not None]
    if len(known) < len(found):
        raise UsageError(f"no window of {kernel} turns sizes {sizes} into {wanted}")
    strides, begins, ends = zip(*known, strict=True)
    return {"kernel_shape": (kernel,) * len(sizes), "strides": strides, "pads": (*begins, *ends)}


def _conv(kernel: int, edit: Edit, source: str, shape: Shape, name: str, *, groups: int = 1) -> str:
    have = _compatible_shape(edit, source, shape)
    weights = {1: (shape[1], have[1] // groups, *(kernel,) * (len(shape) - 2)), 2: (shape[1],)}
    attributes = {**_windows(have[2:], shape[2:], kernel), "group": groups}
    return edit.create("Conv", [source], name=name, attributes=attributes, weights=weights).name


def _compatible_shape(edit: Edit, source: str, wanted: Shape) -> Shape:
    have = edit.graph.shape(source)
    if len(have) < 3 or len(have) != len(wanted) or have[0] != wanted[0]:
        raise UsageError(
            f"no layer turns {source!r} of shape {have} into {wanted}: both must be (batch, channels, sizes)"
        )
    return have
