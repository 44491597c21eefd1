"""What operators of a model must have in common to become one, and the members of a composed model by that."""

from __future__ import annotations

import json
from hashlib import sha256

from iosched.models.batching.ensemble import Ensemble, Likeness
from iosched.models.batching.unit import Unit
from iosched.models.canonical import walked
from iosched.models.composition.compose import Composition
from iosched.models.composition.members import owners
from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import Operator
from iosched.models.model import Model
from iosched.models.structure import form_value


def ensemble_of(composition: Composition) -> Ensemble:
    """The members of a composition as batching sees them."""
    whole = composition.model
    graph, structure = whole.graph, whole.structure
    order = tuple(operator.name for operator in structure.operators)
    names = [name for name, _ in structure.inputs]
    for operator in order:
        names.extend(graph.by_name[operator].outputs)
    reads = {operator.name: tuple(names[number] for number in operator.reads) for operator in structure.operators}
    return Ensemble(graph, order, owners(whole, composition.members), likeness_of(whole), reads)


def likeness_of(model: Model) -> dict[str, Likeness]:
    """For every operator its likeness: that of its form, and of the types and shapes of what it reads.

    Operators whose kind cannot join different weights are alike only if they have the same weights. Keys of different
    models can be compared; whether the models are in one graph does not matter.

    Complexity: that of the model's structure, and O(nodes) for each form.
    """
    structure, graph = model.structure, EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    digests = [sha256(json.dumps(form_value(form)).encode()).hexdigest()[:16] for form in structure.forms]
    specs = [text for _, text in structure.inputs]
    for placed in structure.operators:
        specs.extend(placed.form.outputs)
    known: dict[str, Likeness] = {}
    found: dict[str, Likeness] = {}
    for placed, form in zip(structure.operators, structure.form_numbers, strict=True):
        operator = model.graph.by_name[placed.name]
        key = f"{digests[form]}: {', '.join(specs[number] for number in placed.reads)}"
        if key not in known:
            known[key] = _likeness(model, graph, operator, key)
        likeness = known[key]
        if likeness.key != key:  # it goes by the weights as well
            likeness = Likeness(_with_weights(model, graph, operator, key), likeness.batches, likeness.spreads)
        found[placed.name] = likeness
    return found


def _likeness(model: Model, graph: EditableGraph, operator: Operator, key: str) -> Likeness:
    """The likeness of an operator as if there were another one of this key."""
    pair = operator, operator
    if Unit.of(graph, pair, differ=True, apart=True).axes():
        return Likeness(key, spreads=Unit.of(graph, pair, differ=True).spreads)
    if Unit.of(graph, pair, apart=True).axes():
        return Likeness(_with_weights(model, graph, operator, key))
    return Likeness(key, batches=False)


def _with_weights(model: Model, graph: EditableGraph, operator: Operator, key: str) -> str:
    nodes = walked([graph.node(name) for name in operator.nodes])
    found = (model.weight_digests[name][:16] for node in nodes for name in node.input if name in graph.weights)
    return f"{key}; {', '.join(found)}"
