"""A variant is made by mutators and choices, and again, byte for byte, from the base model and the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from import_helpers import data, feeds_for, model_of, run, weight
from mutations import Custom, check, exported
from onnx import helper

from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.graph import GraphView
from iosched.models.mutation.matching import Match, Targets, chain
from iosched.models.mutation.question import Question
from iosched.models.mutation.record import record_of
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
    return load_model(data(model_of(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights)), name="base")


def first(question: Question) -> int:
    return 0


def last(question: Question) -> int:
    return len(question.candidates) - 1


def mutated(change: Callable[[Targets, Edit], object], where: Match, model: Model | None = None) -> Model:
    """The variant that one function makes, after it was checked that it runs, and is the same when it is made again."""
    given = model or base()
    variant = variant_of(given, [Custom("custom", where, change)], last)
    check(variant)
    return variant.model


def paths(targets: Targets, edit: Edit) -> None:
    """Retiarii's figure 6: two to five paths in the place of the middle of a chain, each of an operator of its own."""
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
