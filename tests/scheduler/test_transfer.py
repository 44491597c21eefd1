"""A schedule fits every model of its structure, which then computes the same as onnxruntime, and no other model."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import onnx
import pytest
from by_definition import TableCost
from hypothesis import assume, given
from hypothesis import strategies as st
from scripted import fire
from shipped import document
from small_models import data, models
from variants import renamed, retrained, shuffled

from iosched.jobs.run import open_executor
from iosched.models.errors import InvalidScheduleError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.structure import first_difference
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy
from iosched.scheduler.document import Alternative, ScheduleDocument, check_operators
from iosched.scheduler.schedule import Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import can_merge
from iosched.scheduler.transfer import fitted


def searched(model: Model, seed: int) -> ScheduleDocument:
    """A schedule file, after writing and reading it, with some schedule of the model that has merge stages."""
    schedule = search(model.graph, TableCost(seed)).schedule
    found = replace(document(model), schedule=schedule, structure=model.structure)
    return ScheduleDocument.from_json(
        replace(found, alternatives=(Alternative("greedy", greedy(model.graph)),)).to_json()
    )


def old_and_new(proto: onnx.ModelProto, seed: int) -> tuple[Model, onnx.ModelProto]:
    return load_model(data(proto)), shuffled(renamed(retrained(proto, seed)), seed)


@pytest.mark.slow
@given(models(), st.integers(0, 99))
def test_a_schedule_runs_with_other_weights_names_and_order(proto: onnx.ModelProto, seed: int) -> None:
    model, variant = old_and_new(proto, seed)
    other = load_model(data(variant))
    taken = fitted(searched(model, seed), other)
    schedule = taken.schedule
    for each in taken.alternatives:
        check_operators(each.schedule, other.graph)

    assert all(can_merge(other.graph, stage.operators) for stage in schedule.stages if stage.strategy is Strategy.MERGE)
    inputs = random_inputs(other.graph.inputs)
    executor = open_executor(other, searched(model, seed), threads=2)
    try:
        with Reference(other) as reference:
            assert compare(executor.run(inputs), reference.run(inputs)).passed
    finally:
        executor.close()


def mutated(proto: onnx.ModelProto, draw: st.DataObject) -> onnx.ModelProto | None:
    """Changes the structure once: a type, an attribute, an edge that now comes from the input, or an output."""
    new = onnx.ModelProto()
    new.CopyFrom(proto)
    source = new.graph.input[0].name
    node = draw.draw(st.sampled_from(list(new.graph.node)))
    change = draw.draw(st.sampled_from(["type", "attribute", "edge", "output"]))
    if change == "type" and node.op_type in ("Relu", "Tanh", "Add", "Sub"):
        node.op_type = {"Relu": "Tanh", "Tanh": "Sigmoid", "Add": "Mul", "Sub": "Div"}[node.op_type]
        return new
    if change == "attribute" and any(item.name == "dilations" for item in node.attribute):
        for item in node.attribute:
            if item.name == "dilations":
                item.ints[:] = [2, 2]
            if item.name == "pads":
                item.ints[:] = [2 * size for size in item.ints]
        return new
    if change == "edge" and node.input[0] != source and node.op_type in ("Relu", "Tanh", "Add", "Sub", "MaxPool"):
        node.input[0] = source
        return new
    if change == "output" and node.output[0] not in {item.name for item in new.graph.output}:
        new.graph.output.add(name=node.output[0]).type.CopyFrom(new.graph.output[0].type)
        return new
    return None


@given(models(most=6), st.integers(0, 99), st.data())
def test_a_change_of_structure_is_refused_and_named(proto: onnx.ModelProto, seed: int, draw: st.DataObject) -> None:
    model, variant = old_and_new(proto, seed)
    changed = mutated(variant, draw)
    assume(changed is not None)
    named = r"another structure: .*(expected .+, found |is missing|is additional|different operators)"
    with pytest.raises(InvalidScheduleError, match=named):
        fitted(searched(model, seed), load_model(data(changed)))


def correspond(one: onnx.GraphProto, other: onnx.GraphProto) -> bool:
    """Whether some pairing of the nodes keeps types, operands and outputs: the definition of equal structure."""
    if len(one.node) != len(other.node) or len(one.output) != len(other.output):
        return False
    for order in permutations(other.node):
        named = {"x": "x", **{a.output[0]: b.output[0] for a, b in zip(one.node, order, strict=True)}}
        kept = all(
            a.op_type == b.op_type and [named[name] for name in a.input] == list(b.input)
            for a, b in zip(one.node, order, strict=True)
        )
        if kept and [named[item.name] for item in one.output] == [item.name for item in other.output]:
            return True
    return False


SMALL = models(most=3, kinds=("Relu", "Tanh", "Sub"))


@given(SMALL, SMALL, st.integers(0, 9))
def test_structures_are_equal_according_to_their_definition(
    one: onnx.ModelProto, other: onnx.ModelProto, seed: int
) -> None:
    equal = correspond(one.graph, other.graph)
    there, here = (load_model(data(proto)).structure for proto in (one, shuffled(renamed(other), seed)))
    assert (there.digest == here.digest) is equal
    assert (first_difference(there, here) is None) is equal


def test_without_a_structure_only_the_same_model_is_accepted() -> None:
    """Earlier versions wrote files without the structure."""
    model = fire()
    old = document(model)
    assert fitted(old, model) is old
    other = load_model(data(retrained(onnx.load_from_string(bytes(model.original)))))
    with pytest.raises(InvalidScheduleError, match="does not record its structure; optimize this model again"):
        fitted(old, other)
    assert fitted(replace(old, structure=model.structure), other).sha256 == other.digest


def test_a_file_whose_structure_names_other_operators_is_refused() -> None:
    """The file says which operators correspond; if that is wrong, the schedule is illegal, and is refused for that."""
    model = fire()
    known = model.structure
    first, second, *rest = known.operators
    swapped = (replace(first, name=second.name), replace(second, name=first.name), *rest)
    for operators in (swapped, (replace(first, name="nobody"), second, *rest)):
        lying = replace(document(model), sha256="0" * 64, structure=replace(known, operators=operators))
        with pytest.raises(InvalidScheduleError, match=r"before|beside|does not have"):
            fitted(lying, model)


def test_the_error_names_the_input_shape_to_bind() -> None:
    with pytest.raises(InvalidScheduleError, match="use --input-shape x=2x16x6x6"):
        fitted(replace(document(fire(2)), structure=fire(2).structure), fire(4))
