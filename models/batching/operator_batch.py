"""Operators of several members, node by node, and the criteria for batching them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
import onnx

from iosched.models.batching import (
    concatenation,
    convolution,
    elementwise,
    normalization,
    pooling,
    product,
    reduction,
    reshaping,
    selecting,
)
from iosched.models.batching.ensemble import Ensemble, Likeness
from iosched.models.batching.layer import Axes, Constants, Joined, MemberLayer, Operand, Single, Writer
from iosched.models.canonical import counts_in_form, walked
from iosched.models.composition.compose import Composition
from iosched.models.composition.members import owners
from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import Operator
from iosched.models.model import Model
from iosched.models.node_attributes import plain_values
from iosched.models.structure import form_value
from iosched.models.wiring import is_standard

Names = tuple[str, ...]
Way = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rule:
    """The rule for batching nodes of one kind.

    Attributes:
        axes: the axes along which such a layer may be joined.
        write: appends nodes for a layer joined along one of `axes`, and returns the results; None if the first member's
            node works unchanged.
        spreads: whether a node takes one tensor for all members as first input.
    """

    axes: Callable[[MemberLayer], Axes]
    write: Callable[[MemberLayer, int, Writer], list[Joined]] | None = None
    spreads: bool = False


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(concatenation.TYPES, Rule(concatenation.axes, concatenation.write)),
    **dict.fromkeys(convolution.TYPES, Rule(convolution.axes, convolution.write, spreads=True)),
    **dict.fromkeys(elementwise.TYPES, Rule(elementwise.axes, elementwise.write)),
    **dict.fromkeys(normalization.TYPES, Rule(normalization.axes, normalization.write)),
    **dict.fromkeys(pooling.TYPES, Rule(pooling.axes)),
    **dict.fromkeys(product.TYPES, Rule(product.axes, product.write, spreads=True)),
    **dict.fromkeys(reduction.TYPES, Rule(reduction.axes)),
    **dict.fromkeys(reshaping.TYPES, Rule(reshaping.axes, reshaping.write)),
    **dict.fromkeys(selecting.TYPES, Rule(selecting.axes)),
    "Gather": Rule(selecting.gathered_axes),
    "Transpose": Rule(reshaping.transposed_axes),
}
"""By ONNX type, of ONNX's own domain."""


@dataclass(frozen=True, eq=False)
class OperatorBatch:
    """Alike operators, one of each member.

    Attributes:
        graph: the model.
        rows: for each node of an operator, the members' nodes, in the order of the operator's form.
        differ: assume that weights differ between members.
        separate: assume that inputs differ between members.
    """

    graph: EditableGraph
    rows: tuple[tuple[onnx.NodeProto, ...], ...]
    differ: bool = False
    separate: bool = False

    @classmethod
    def of(
        cls, graph: EditableGraph, operators: Sequence[Operator], *, differ: bool = False, separate: bool = False
    ) -> OperatorBatch:
        """The batch of these operators; one may occur several times.

        Raises:
            ValueError: they are not alike.
        """
        each = {operator.name: operator for operator in operators}
        own = {name: walked([graph.node(node) for node in operator.nodes]) for name, operator in each.items()}
        first = [_batch_criteria(graph, node) for node in own[operators[0].name]]
        for name, nodes in own.items():
            if [_batch_criteria(graph, node) for node in nodes] != first:
                raise ValueError(f"operators {operators[0].name!r} and {name!r} differ in type, attributes or shapes")
        return cls(graph, tuple(zip(*(own[operator.name] for operator in operators), strict=True)), differ, separate)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rule of each node; () if one has none, or a shape is unknown."""
        found = (RULES.get(row[0].op_type) for row in self.rows if is_standard(row[0]))
        rules = tuple(rule for rule in found if rule is not None)
        names = {name for row in self.rows for node in row for name in (*node.input, *node.output)}
        computed = names - self.graph.weights.keys() - {""}
        is_static = all(self.graph.known_shape(name) is not None for name in computed)
        return rules if len(rules) == len(self.rows) and is_static else ()

    @cached_property
    def inner(self) -> Mapping[str, int]:
        """The row that computes each tensor of the first member."""
        return {name: row for row, nodes in enumerate(self.rows) for name in nodes[0].output if name}

    @cached_property
    def spreads(self) -> bool:
        """Whether all members read one unchanged tensor, which only the first node reads."""
        name = self.rows[0][0].input[0]
        if self.separate or not self.rules or not self.rules[0].spreads or name in self.graph.weights:
            return False
        first = [node.input[0] for node in self.rows[0]]
        reads = Counter(read for row in self.rows for node in row for read in node.input)
        is_read_once = set(first) == {name} and reads[name] == len(first)
        return is_read_once and bool(self.rules[0].axes(self._layer(0, {}, spreads=True)))

    def is_own(self, names: Names) -> bool:
        """Whether these inputs of a row are computed outside the batch, one for each member."""
        if not names[0] or names[0] in self.graph.weights or names[0] in self.inner:
            return False
        return not (self.spreads and names[0] == self.rows[0][0].input[0])

    def ports(self) -> list[Names]:
        """The inputs for which `is_own` is true, each once."""
        found = dict.fromkeys(names for row in range(len(self.rows)) for names in self.slots(row))
        return [names for names in found if self.is_own(names)]

    def outputs(self, row: int = -1) -> list[Names]:
        """The members' tensors for every output of a row."""
        return list(zip(*(node.output for node in self.rows[row]), strict=True))

    def slots(self, row: int) -> list[Names]:
        """The members' tensors for every input of a row."""
        return list(zip(*(node.input for node in self.rows[row]), strict=True))

    def _layer(self, row: int, joined: Mapping[Names, Joined], spreads: bool) -> MemberLayer:
        nodes = self.rows[row]
        operands = [self._operand(row, slot, names, joined) for slot, names in enumerate(self.slots(row))]
        if spreads and row == 0:
            operands[0] = Single(nodes[0].input[0], self.graph.shape(nodes[0].input[0]))
        results = tuple(self.graph.shape(name) if name else () for name in nodes[0].output)
        return MemberLayer(nodes, tuple(operands), results, self.graph.opset)

    @cached_property
    def ways(self) -> Mapping[int, Way]:
        """For each possible axis of the inputs, the axes along which the inputs and results of each node are joined.

        Every node must take its predecessors' results unchanged.
        """
        if not self.rules:
            return {}
        layers = [self._layer(row, {}, self.spreads) for row in range(len(self.rows))]
        found = {axis: self._way(layers, axis) for axis in self.rules[0].axes(layers[0])}
        return {axis: way for axis, way in found.items() if way}

    def axes(self) -> Axes:
        """The axes along which inputs may be joined, with those of the results."""
        return {axis: way[-1][1] for axis, way in self.ways.items()}

    def axis_at(self, names: Names, axis: int) -> int:
        """The axis along which one of `ports` is joined where it is read; `axis` is one of `axes`."""
        rows = (row for row in range(len(self.rows)) if names in self.slots(row))
        return self.ways[axis][next(rows)][0]

    def write(self, axis: int, writer: Writer) -> None:
        """Append the nodes for all members, joined along `axis`; their inputs have been written."""
        computed: dict[Names, Joined] = {}
        for row, (own, after) in enumerate(self.ways[axis]):
            laid: dict[Names, Joined] = {}
            for names in self.slots(row):
                if self.is_own(names) or names in computed:
                    shape = self.graph.shape(names[0])
                    joined = computed.get(names) or writer.join(names, own, shape)
                    laid[names] = writer.relaid(joined, own, len(names))
            layer, write = self._layer(row, laid, self.spreads), self.rules[row].write
            found = write(layer, own, writer) if write else writer.one(layer, after, layer.names())
            computed.update(zip(self.outputs(row), found, strict=False))
        for names in self.outputs():
            if names in computed:
                writer.results[names] = computed[names]

    def _way(self, layers: Sequence[MemberLayer], axis: int) -> Way:
        found: list[tuple[int, int]] = []
        for rule, layer in zip(self.rules, layers, strict=True):
            inside = {found[self.inner[name]][1] for name in layer.node.input if name in self.inner}
            own = next(iter(inside), axis)
            after = rule.axes(layer)
            if len(inside) > 1 or own not in after:
                return ()
            found.append((own, after[own]))
        return tuple(found)

    def _operand(self, row: int, slot: int, names: Names, joined: Mapping[Names, Joined]) -> Operand:
        first, weights = names[0], self.graph.weights
        if not first:
            return None
        if first not in weights:
            return joined.get(names) or Joined("", 0, self.graph.shape(first))
        arrays = tuple(np.asarray(weights[name]) for name in names)
        differ = self.differ and not counts_in_form(self.rows[row][0], slot, arrays[0].dtype.name)
        return Constants(tuple(map(str, range(len(names)))) if differ else names, arrays)


def _batch_criteria(graph: EditableGraph, node: onnx.NodeProto) -> object:
    names = (*node.input, *node.output)
    kinds = [(bool(name), name in graph.weights) for name in names]
    return node.domain, node.op_type, plain_values(node), [*map(graph.known_shape, names)], kinds


def ensemble_of(composition: Composition) -> Ensemble:
    """The members of a composition, in the form that batching uses."""
    whole = composition.model
    graph, structure = whole.graph, whole.structure
    order = tuple(operator.name for operator in structure.operators)
    names = [name for name, _ in structure.inputs]
    for operator in order:
        names.extend(graph.by_name[operator].outputs)
    reads = {operator.name: tuple(names[number] for number in operator.reads) for operator in structure.operators}
    return Ensemble(graph, order, owners(whole, composition.members), likeness_of(whole), reads)


def likeness_of(model: Model) -> dict[str, Likeness]:
    """The likeness of every operator, in the structure's order, by form and input types; O(nodes) for each form.

    Operators that cannot join different weights are alike only if these are equal. Keys of different models are
    comparable.
    """
    structure, graph = model.structure, EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    digests = [sha256(json.dumps(form_value(form)).encode()).hexdigest()[:16] for form in structure.forms]
    specs = [text for _, text in structure.inputs]
    for placed in structure.operators:
        specs.extend(placed.form.outputs)
    known: dict[str, tuple[bool, bool, bool]] = {}
    found: dict[str, Likeness] = {}
    for placed, form in zip(structure.operators, structure.form_numbers, strict=True):
        operator = model.graph.by_name[placed.name]
        key = f"{digests[form]}: {', '.join(specs[number] for number in placed.reads)}"
        if key not in known:
            known[key] = _batching_of(graph, operator)
        batches, spreads, by_weights = known[key]
        if by_weights:
            read = (name for node in walked([graph.node(name) for name in operator.nodes]) for name in node.input)
            key = f"{key}; {', '.join(model.weight_digests[name][:16] for name in read if name in graph.weights)}"
        found[placed.name] = Likeness(key, batches, spreads)
    return found


def _batching_of(graph: EditableGraph, operator: Operator) -> tuple[bool, bool, bool]:
    """Whether two such operators can be batched, can share one input, and need equal weights."""
    pair = operator, operator
    if OperatorBatch.of(graph, pair, differ=True, separate=True).axes():
        return True, OperatorBatch.of(graph, pair, differ=True).spreads, False
    batches = bool(OperatorBatch.of(graph, pair, separate=True).axes())
    return batches, False, batches
