"""Signatures of stages: stages of one signature have one latency, which is measured once.

The signature is a canonical form: the strategy and the multiset of groups, each up to isomorphism over the operators'
labels and edges, together with the inputs that groups share.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

from iosched.models.graph import ComputationGraph, Operator
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import is_linked

Label = Callable[[Operator], str]

_MAX_ORDERS = 5_040  # orders of equal-looking operators that are tried for the exact form


def default_label(graph: ComputationGraph) -> Label:
    """Type, attributes, and types and shapes of everything that an operator reads and writes; no names."""

    def label(operator: Operator) -> str:
        tensors = [graph.tensor.get(name) for name in (*operator.inputs, *operator.outputs)]
        specs = [(spec.dtype, spec.shape) if spec else None for spec in tensors]
        weights = [(spec.dtype, spec.shape) for spec in operator.weights]
        return repr((operator.type, operator.attributes, len(operator.inputs), specs, weights))

    return label


def stage_signature(graph: ComputationGraph, stage: Stage, label: Label | None = None) -> str:
    """Hexadecimal SHA-256 of the canonical form of `stage`; independent of names and orders.

    `label` contains everything that affects an operator's latency; by default type, attributes, shapes and types.

    Exact if the operators that refinement cannot distinguish have at most 5,040 orders (any group of up to seven
    operators, and nearly all larger ones). Otherwise equal stages may get two signatures, but unequal ones never share
    one.
    """
    return Signatures(graph, label or default_label(graph)).of(stage)


class Signatures:
    """Signatures of many stages of one graph; the form of a group is computed once for all its stages."""

    def __init__(self, graph: ComputationGraph, label: Label) -> None:
        self._graph, self._label = graph, label
        self._forms: dict[tuple[str, ...], str] = {}

    def of(self, stage: Stage) -> str:
        """See `stage_signature`."""
        linked = is_linked(stage)
        forms = [_linked_form(self._graph, stage, self._label)] if linked else sorted(map(self._form, stage.groups))
        text = repr((stage.strategy.value, forms, _sharing(self._graph, stage, self._label)))
        return hashlib.sha256(text.encode()).hexdigest()

    def of_division(self, stage: Stage) -> str:
        """SHA-256 of the groups' lanes up to renumbering; "" without a division.

        Equal divisions may get two texts if groups of equal forms run on unlike lanes; unequal ones never share one.
        """
        if stage.division is None:
            return ""
        number: dict[int, int] = {}
        rows = []
        for form, own in sorted(zip(map(self._form, stage.groups), stage.division.groups, strict=True)):
            rows.append((form, sorted(number.setdefault(lane, len(number)) for lane in own)))
        return hashlib.sha256(repr((stage.division.lanes, rows)).encode()).hexdigest()

    def _form(self, group: tuple[str, ...]) -> str:
        if group not in self._forms:
            self._forms[group] = group_form(self._graph, group, self._label)
        return self._forms[group]


def _linked_form(graph: ComputationGraph, stage: Stage, label: Label) -> str:
    """The groups in their order, so that equal stages may get two signatures."""
    form = _description(_View.of(graph, stage.operators, label), stage.operators)
    return repr(([len(group) for group in stage.groups], form))


def group_form(graph: ComputationGraph, group: tuple[str, ...], label: Label) -> str:
    """The canonical form of one group."""
    return _group_form(_View.of(graph, group, label), group)


@dataclass(frozen=True)
class _View:
    label: dict[str, str]
    reads: dict[str, tuple[tuple[str | None, int], ...]]  # for each input (operator of the group or None, its output)
    returned: dict[str, tuple[int, ...]]  # positions of the outputs that are read outside the group

    @classmethod
    def of(cls, graph: ComputationGraph, group: Sequence[str], label: Label) -> _View:
        inside = frozenset(group)
        return cls(
            {name: label(graph.by_name[name]) for name in group},
            {name: tuple(sources_inside(graph, name, inside)) for name in group},
            {name: outputs_read_outside(graph, name, inside) for name in group},
        )


def _sharing(graph: ComputationGraph, stage: Stage, label: Label) -> list[tuple[tuple[str, ...], int]]:
    """Sets of operators that read one outside value, which is loaded once and so affects the latency."""
    inside = set(stage.operators)
    readers: dict[str, list[str]] = {}
    for name in stage.operators:
        for tensor in graph.by_name[name].inputs:
            if graph.producer.get(tensor) not in inside:
                readers.setdefault(tensor, []).append(name)
    several = [names for names in readers.values() if len(names) > 1]
    if not several:
        return []
    return sorted(Counter(tuple(sorted(label(graph.by_name[name]) for name in names)) for names in several).items())


def sources_inside(
    graph: ComputationGraph, name: str, inside: Container[str]
) -> Iterator[tuple[str, int] | tuple[None, int]]:
    """For each input of the operator its producer in `inside` and the position among its outputs, else (None, 0)."""
    for tensor in graph.by_name[name].inputs:
        source = graph.producer.get(tensor)
        if source is None or source not in inside:
            yield None, 0
        else:
            yield source, graph.by_name[source].outputs.index(tensor)


def outputs_read_outside(graph: ComputationGraph, name: str, inside: Container[str]) -> tuple[int, ...]:
    """Positions of the operator's outputs that are read outside or are outputs of the graph.

    The others may stay within a fused kernel.
    """
    outside = set(graph.outputs)
    for reader in graph.successors[name]:
        if reader not in inside:
            outside.update(graph.by_name[reader].inputs)
    return tuple(index for index, tensor in enumerate(graph.by_name[name].outputs) if tensor in outside)


def _group_form(view: _View, group: Sequence[str]) -> str:
    """The least description of the group over all orders that its refined colours allow."""
    colour = _refined(view, group)
    classes: dict[str, list[str]] = {}
    for name in group:
        classes.setdefault(colour[name], []).append(name)
    cells = [classes[key] for key in sorted(classes)]
    if prod(factorial(len(cell)) for cell in cells) > _MAX_ORDERS:
        return _description(view, [name for cell in cells for name in cell])
    orders = product(*(permutations(cell) for cell in cells))
    return min(_description(view, [name for cell in order for name in cell]) for order in orders)


def _description(view: _View, order: Sequence[str]) -> str:
    index = {name: position for position, name in enumerate(order)}
    rows = []
    for name in order:
        edges = [(index[source], output) if source else None for source, output in view.reads[name]]
        rows.append((view.label[name], edges, view.returned[name]))
    return repr(rows)


def _refined(view: _View, group: Sequence[str]) -> dict[str, str]:
    """Colours that distinguish operators by their neighbourhoods (Weisfeiler-Leman, one-dimensional)."""
    colour = {name: _digest((view.label[name], view.returned[name])) for name in group}
    n_colours = len(set(colour.values()))
    while True:
        after: dict[str, list[tuple[str, int, int]]] = {name: [] for name in group}
        for name in group:
            for position, (source, output) in enumerate(view.reads[name]):
                if source:
                    after[source].append((colour[name], position, output))
        colour = {
            name: _digest(
                (
                    colour[name],
                    [(colour[source], output) if source else None for source, output in view.reads[name]],
                    sorted(after[name]),
                )
            )
            for name in group
        }
        if len(set(colour.values())) == n_colours:
            return colour
        n_colours = len(set(colour.values()))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
