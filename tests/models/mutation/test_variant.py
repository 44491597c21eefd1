"""Mutators and choices make a variant; the base model and its record reproduce it byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from mutations import Custom, check, exported
from onnx import helper
from small_models import data, feeds_for, proto_of, run, weight

from iosched.models.errors import UsageError
from iosched.models.export import NodeNote, annotate, write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Edit, Question
from iosched.models.mutation.graph_view import GraphView
from iosched.models.mutation.mutator import Match, OperatorMutator, Targets, by_name, by_type, chain
from iosched.models.mutation.record import MUTATION_KEY, record_of
from iosched.models.mutation.variant import replay, variant_of

node = helper.make_node


def base() -> Model:
    """stem -> (middle -> last | side), joined by a Concat; a Relu behind each but the last."""
    nodes = [
        node("Conv", ["x", "w0"], ["stem/conv"], pads=[1] * 4),
        node("Relu", ["stem/conv"], ["stem"]),
        node("Conv", ["stem", "w1", "b1"], ["middle/conv"], pads=[1] * 4),
        node("Relu", ["middle/conv"], ["middle"]),
        node("Conv", ["middle", "w2"], ["last"]),
        node("Conv", ["stem", "w3"], ["side/conv"]),
        node("Relu", ["side/conv"], ["side"]),
        node("Concat", ["last", "side"], ["y"], axis=1),
    ]
    weights = {
        "w0": weight(8, 3, 3, 3),
        "w1": weight(8, 8, 3, 3, seed=1),
        "b1": weight(8, seed=2),
        "w2": weight(8, 8, 1, 1, seed=3),
        "w3": weight(8, 8, 1, 1, seed=4),
    }
    return load_model(data(proto_of(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights)), name="base")


def first(question: Question) -> int:
    return 0


def last(question: Question) -> int:
    return len(question.candidates) - 1


def mutated(change: Callable[[Targets, Edit], object], where: Match, model: Model | None = None) -> Model:
    """The variant that one function makes, after a check that it runs and that its record reproduces it."""
    given = model or base()
    variant = variant_of(given, [Custom("custom", where, change)], last)
    check(variant)
    return variant.model


def paths(targets: Targets, edit: Edit) -> None:
    """Retiarii's figure 6: two to five paths in place of the middle of a chain, each with a separate operator."""
    (_, relu), source = targets, targets[0].inputs[0]
    ends = []
    for index in range(int(edit.choose([2, 3, 4, 5], "paths"))):
        if edit.choose(["conv", "pool"], f"path{index}") == "conv":
            kernel = {1: (8, 8, 3, 3)}
            made = edit.create("Conv", [source], name=f"way{index}", attributes={"pads": (1,) * 4}, weights=kernel)
        else:
            window = {"kernel_shape": (3, 3), "pads": (1,) * 4}
            made = edit.create("MaxPool", [source], name=f"way{index}", attributes=window)
        ends.append(made.name)
    total = edit.create("Sum", ends, name="ways")
    edit.redirect(relu.name, total.name)


def test_a_mutator_with_nested_choices() -> None:
    asked: list[Question] = []

    def answer(question: Question) -> int:
        asked.append(question)
        return 1

    variant = variant_of(base(), [Custom("inception", by_chain_of_two, paths)], answer)
    names = ["paths{2,3,4,5}", *(f"path{index}{{conv,pool}}" for index in range(3))]
    assert [question.name for question in asked] == [f"inception[middle/conv]/{name}" for name in names]
    assert variant.choices == dict(zip((question.name for question in asked), (3, "pool", "pool", "pool"), strict=True))
    assert {"way0", "way1", "way2", "ways"} < variant.model.graph.producer.keys()
    assert not {"middle/conv", "middle"} & {item.name for item in variant.model.proto.graph.node}
    assert variant.unmodified == {"stem/conv", "stem", "side/conv", "side", "y"}
    run(exported(variant.model), feeds_for(variant.model))


def test_without_mutators_a_variant_is_its_base_to_the_last_bit() -> None:
    model = base()
    variant = variant_of(model, [], first)
    assert variant.unmodified == {item.name for item in model.proto.graph.node}
    assert variant.model.digest == model.digest
    feeds = feeds_for(model)
    assert (run(exported(variant.model), feeds)["y"] == run(exported(model), feeds)["y"]).all()


def test_the_file_has_its_record() -> None:
    model = mutated(paths, by_chain_of_two)
    loaded = load_model(exported(model))
    record = record_of(loaded.proto)
    assert record is not None
    assert record.seeded == tuple(f"way{index}/W" for index in range(5) if f"way{index}/W" in loaded.weights)
    assert record.choices["custom[middle/conv]/paths{2,3,4,5}"] == 5
    assert exported(replay(base(), record)) == exported(model)


def by_chain_of_two(graph: GraphView) -> Sequence[Targets]:
    return [targets[:2] for targets in chain("Conv", "Relu", "Conv")(graph)]


def test_a_variant_inherits_nothing_of_the_bases_schedule() -> None:
    """An optimized model is the same base as the model that it was optimized from."""
    model = base()
    order = [operator.name for operator in model.graph.operators]
    notes = {name: NodeNote(0, index, 0, "concurrent", 1.0) for index, name in enumerate(order)}
    proto = annotate(model, order=order, notes=notes, merges=[], schedule_json="{}", version="0")
    proto.metadata_props.add(key="author", value="somebody")
    optimized = load_model(write_model(proto, model.weights, None) or b"", name="base")
    variant = variant_of(optimized, [Custom("custom", by_chain_of_two, paths)], last)
    assert optimized.schedule_json == "{}"
    assert variant.model.schedule_json is None
    kept = {item.key for item in variant.model.proto.metadata_props}
    assert kept == {"author", MUTATION_KEY}
    assert not any(node.metadata_props for node in variant.model.proto.graph.node)
    assert replay(model, variant.record).digest == variant.model.digest


def test_a_target_that_an_earlier_mutation_removed_is_skipped() -> None:
    mutated_nodes: list[str] = []

    def take_the_next(targets: Targets, edit: Edit) -> None:
        mutated_nodes.append(targets[0].name)
        if targets[0].name == "stem/conv":
            edit.redirect("middle", "stem")

    variant = variant_of(base(), [Custom("custom", by_type("Conv"), take_the_next)], first)
    assert mutated_nodes == ["stem/conv", "last", "side/conv"]
    check(variant)


def test_types_that_onnx_cannot_infer_stay_until_inputs_change() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("QuickGelu", ["a"], ["b"], domain="com.microsoft"),
        node("Relu", ["b"], ["y"]),
    ]
    proto = proto_of(nodes, {"x": [1, 3, 6, 6]}, ["y"], {"w": weight(4, 3, 3, 3)}, domains=["com.microsoft"])
    proto.graph.value_info.append(helper.make_tensor_value_info("b", 1, [1, 4, 6, 6]))
    model = load_model(data(proto))

    def shape_of(change: Callable[[Targets, Edit], object]) -> tuple[int, ...] | None:
        variant = variant_of(model, [Custom("custom", by_name("a"), change)], first)
        file = exported(variant.model)
        assert exported(replay(model, variant.record)) == file
        run(file, feeds_for(variant.model))
        spec = variant.model.graph.tensor.get("b")
        return None if spec is None else spec.shape

    assert shape_of(lambda targets, edit: None) == (1, 4, 6, 6)
    assert shape_of(lambda targets, edit: edit.replace("a", weights={1: (5, 3, 3, 3)})) is None


def test_a_mutator_whose_match_fails_is_named() -> None:
    def broken(graph: GraphView) -> Sequence[Targets]:
        raise KeyError("missing")

    with pytest.raises(UsageError, match="mutator 'custom' failed to match: KeyError: 'missing'"):
        variant_of(base(), [Custom("custom", broken, paths)], first)


def test_new_weights_do_not_depend_on_other_choices() -> None:
    """Variants that share a layer share its weights."""
    layer = OperatorMutator("op", by_name("side/conv"), ["conv3"])
    alone = variant_of(base(), [layer], first).model.weights
    other = variant_of(base(), [Custom("custom", by_chain_of_two, paths), layer], last).model.weights
    assert (alone["side/conv/conv3/W"] == other["side/conv/conv3/W"]).all()
