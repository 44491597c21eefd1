"""The effect of each primitive, its errors, and the values of weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mutations import Custom, check, exported
from onnx import TensorProto, helper
from small_models import data, feeds_for, proto_of, run, weight

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.mutator import by_name
from iosched.models.mutation.variant import Variant, variant_of

node = helper.make_node
Change = Callable[[Edit], object]


def model() -> Model:
    """A convolution a and its Relu b; c (with a bias) and d read that, and y is their Concat; y and b are returned."""
    nodes = [
        node("Conv", ["x", "wa"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "wc", "bc"], ["c"], pads=[1] * 4),
        node("Conv", ["b", "wd"], ["d"]),
        node("Concat", ["c", "d"], ["y"], axis=1),
    ]
    weights = {"wa": weight(8, 3, 3, 3), "wc": weight(6, 8, 3, 3), "bc": weight(6), "wd": weight(2, 8, 1, 1)}
    return load_model(data(proto_of(nodes, {"x": [1, 3, 6, 6]}, ["y", "b"], weights)), name="base")


def changed(change: Change, base: Model | None = None) -> Variant:
    """The variant that `change` makes, after it was checked."""
    variant = variant_of(base or model(), [Custom("own", by_name("c"), lambda _, edit: change(edit))], lambda _: 0)
    check(variant)
    return variant


def values(variant: Variant) -> dict[str, np.ndarray]:
    return run(exported(variant.model), feeds_for(variant.model))


def kinds(variant: Variant) -> dict[str, str]:
    return {item.name: item.op_type for item in variant.model.proto.graph.node}


def test_create_and_redirect() -> None:
    def behind_c(edit: Edit) -> None:
        made = edit.create("LeakyRelu", ["c"], name="leaky", attributes={"alpha": 0.5})
        assert (made.name, made.type, made.inputs, made.attributes["alpha"]) == ("leaky", "LeakyRelu", ("c",), 0.5)
        assert edit.graph.shape("leaky") == (1, 6, 6, 6)
        edit.redirect("c", "leaky", but=[made])

    before, variant = values(changed(lambda edit: None)), changed(behind_c)
    assert kinds(variant)["leaky"] == "LeakyRelu"
    assert variant.unmodified == {"a", "b", "c", "d"}
    assert (values(variant)["y"][:, 6:] == before["y"][:, 6:]).all()
    np.testing.assert_array_equal(
        values(variant)["y"][:, :6], np.where(before["y"][:, :6] > 0, 1, 0.5).astype(np.float32) * before["y"][:, :6]
    )


def test_a_name_that_is_taken_gets_a_number() -> None:
    def twice(edit: Edit) -> None:
        first, second = (edit.create("Relu", ["c"], name="d") for _ in range(2))
        assert (first.name, second.name) == ("d_2", "d_3")
        edit.connect(edit.create("Add", [first.name, second.name], name="sum").name, "y", 0)

    changed(twice)


def test_a_node_with_several_outputs() -> None:
    def halves(edit: Edit) -> None:
        parts = edit.create(
            "Split", ["b"], name="part", attributes={"axis": 1}, outputs=2, weights={1: np.array([4, 4])}
        )
        assert parts.outputs == ("part", "part/1")
        edit.connect(edit.create("Concat", parts.outputs[::-1], name="swapped", attributes={"axis": 1}).name, "c", 0)

    changed(halves)


def test_delete_removes_nodes_and_those_without_other_readers() -> None:
    def without_d(edit: Edit) -> None:
        edit.replace("y", inputs=["c"])
        edit.delete("d")

    variant = changed(without_d)
    assert variant.model.graph.outputs == ("y", "b")
    assert "d" not in kinds(variant)
    assert "wd" not in variant.model.weights

    variant = changed(lambda edit: edit.replace("y", inputs=["c"]))
    assert [entry.node for entry in variant.record.primitives if hasattr(entry, "node")] == ["y", "d"]


def test_a_deleted_node_may_be_created_again() -> None:
    def another_b(edit: Edit) -> None:
        edit.delete("b")
        edit.create("Tanh", ["a"], name="b")

    variant = changed(another_b)
    assert kinds(variant)["b"] == "Tanh"
    assert variant.unmodified == {"a", "c", "d", "y"}
    assert values(variant)["b"].max() <= 1


def test_a_node_that_reads_a_constant_instead_is_modified() -> None:
    def constant(edit: Edit) -> None:
        edit.delete("d")
        edit.create("Abs", [""], name="d", weights={0: np.ones((1, 2, 6, 6), np.float32)})

    variant = changed(constant)
    assert variant.model.weights["d"].shape == (1, 2, 6, 6)
    assert variant.unmodified == {"a", "b", "c"}


def test_a_view_is_a_snapshot_of_the_graph() -> None:
    def drop_d(edit: Edit) -> None:
        before = edit.graph
        edit.replace("y", inputs=["c"])
        edit.delete("d")
        with pytest.raises(UsageError, match="no node 'd'"):
            edit.delete("d")
        assert (before.has_node("d"), edit.graph.has_node("d")) == (True, False)
        assert before.shape("y") == (1, 8, 6, 6)
        assert edit.graph.shape("y") == (1, 6, 6, 6)

    changed(drop_d)


def test_replacing_an_output_leaves_no_stale_types() -> None:
    nodes = [node("Split", ["x"], ["s", "t"], axis=1), node("Add", ["s", "t"], ["c"])]
    base = load_model(data(proto_of(nodes, {"x": [1, 4, 3, 3]}, ["c"])), name="halves")

    def one(edit: Edit) -> None:
        edit.replace("s", "Relu")
        assert edit.graph.spec("t") is None
        edit.replace("c", "Relu", inputs=["s"])

    assert changed(one, base).model.graph.tensor["c"].shape == (1, 4, 3, 3)


def test_an_output_that_is_an_input_cannot_be_another_tensor() -> None:
    base = load_model(data(proto_of([node("Relu", ["x"], ["c"])], {"x": [1, 3]}, ["c", "x"])), name="echo")
    with pytest.raises(InvalidModelError, match="graph output 'x' cannot be another tensor: it is an input"):
        changed(lambda edit: edit.connect_output("c", "x"), base)


def test_an_output_keeps_its_name() -> None:
    base = model()
    for source in ("c", "a"):  # a is inside an operator, c a separate operator
        variant = changed(lambda edit, source=source: edit.connect_output(source, "b"))  # type: ignore[misc]
        assert variant.model.graph.outputs == ("y", "b")
        shape = {"c": (1, 6, 6, 6), "a": (1, 8, 6, 6)}[source]
        assert values(variant)["b"].shape == shape
        np.testing.assert_array_equal(values(variant)["y"], run(exported(base), feeds_for(base))["y"])


def test_tensors_captured_by_subgraphs_cannot_be_replaced() -> None:
    """An If whose branches capture b and have no inputs."""
    value = helper.make_tensor_value_info
    inside = [
        helper.make_graph([node(kind, ["b"], [kind])], kind, [], [value(kind, TensorProto.FLOAT, [1, 3])])
        for kind in ("Relu", "Neg")
    ]
    nodes = [
        node("Abs", ["x"], ["b"]),
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Cast", ["most"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["y"], then_branch=inside[0], else_branch=inside[1]),
    ]
    base = load_model(data(proto_of(nodes, {"x": [1, 3]}, ["y", "b"])), name="branching")
    assert changed(lambda edit: None, base).unmodified == {"b", "most", "c", "y"}
    variant = changed(lambda edit: edit.create("Tanh", ["x"], name="new") and edit.connect("x", "most", 0), base)
    assert variant.unmodified == {"b", "most", "c", "y"}
    with pytest.raises(UsageError, match="a subgraph of node 'y' reads 'b', and cannot read 'x' instead"):
        changed(lambda edit: edit.redirect("b", "x"), base)
    with pytest.raises(
        InvalidModelError, match="output 'b' cannot be another tensor: a subgraph of node 'y' reads 'b'"
    ):
        changed(lambda edit: edit.connect_output("most", "b"), base)


def test_replace_changes_attributes_and_keeps_weights() -> None:
    variant = changed(lambda edit: edit.replace("d", attributes={"strides": (1, 1)}))
    assert variant.model.weights["wd"] is variant.base.weights["wd"]
    assert variant.record.seeded == ()
    assert variant.unmodified == {"a", "b", "c", "y"}


def test_replace_by_another_operator() -> None:
    def pooled(edit: Edit) -> None:
        assert edit.replace("a", "AveragePool", attributes={"kernel_shape": (1, 1)}).inputs == ("x",)
        edit.refit("a")

    variant = changed(pooled)
    assert values(variant)["b"].shape == (1, 3, 6, 6)
    assert kinds(variant)["a"] == "AveragePool"
    assert variant.record.sliced == {"c/W": "wc", "d/W": "wd"}


def test_weights_are_inherited_sliced_or_seeded() -> None:
    def grown(edit: Edit) -> None:
        edit.replace("a", weights={1: (8, 3, 3, 3)})
        edit.replace("c", attributes={"pads": (0,) * 4}, weights={1: (5, 8, 1, 1), 2: (5,)})
        edit.replace("d", weights={1: (4, 8, 1, 1)})

    variant = changed(grown)
    weights, old = variant.model.weights, variant.base.weights
    assert weights["wa"] is old["wa"]
    assert (weights["c/W"] == old["wc"][:5, :, 1:2, 1:2]).all()
    assert (weights["c/B"] == old["bc"][:5]).all()
    assert variant.record.sliced == {"c/W": "wc", "c/B": "bc"}
    assert variant.record.seeded == ("d/W",)
    assert not np.isin(weights["d/W"], old["wd"]).any()


def test_only_weights_of_the_base_are_sliced() -> None:
    """Slices of new weights are seeded again; a slice of a slice is one of the base's weight."""

    def twice(edit: Edit) -> None:
        edit.replace("c", weights={1: (8, 8, 3, 3), 2: (8,)})
        edit.replace("c", weights={1: (5, 8, 3, 3), 2: (5,)})
        edit.replace("a", weights={1: (7, 3, 3, 3)})
        edit.replace("a", weights={1: (6, 3, 3, 3)})
        edit.refit("a")

    record = changed(twice).record
    assert "c/W_2" in record.seeded
    assert record.sliced["a/W_2"] == "wa"


def test_grouped_weights_are_sliced_only_where_groups_mean_the_same() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], group=4), node("Relu", ["c"], ["y"])]
    depthwise = load_model(data(proto_of(nodes, {"x": [1, 4, 3, 3]}, ["y"], {"w": weight(4, 1, 1, 1)})))

    def narrower(edit: Edit) -> None:
        first = edit.create("Conv", ["x"], name="first", weights={1: (3, 4, 1, 1)})
        edit.replace("c", attributes={"group": 3}, weights={1: (3, 1, 1, 1)}, inputs=[first.name, "w"])

    assert changed(narrower, depthwise).record.sliced == {"c/W": "w"}

    grouped = load_model(
        data(
            proto_of(
                [node("Conv", ["x", "w"], ["c"], group=2), node("Relu", ["c"], ["y"])],
                {"x": [1, 4, 3, 3]},
                ["y"],
                {"w": weight(4, 2, 1, 1)},
            )
        )
    )
    variant = changed(lambda edit: edit.replace("c", attributes={"group": 4}, weights={1: (4, 1, 1, 1)}), grouped)
    assert (variant.record.seeded, variant.record.sliced) == (("c/W",), {})


def test_new_weights_have_the_type_of_the_other_operands() -> None:
    half = proto_of([node("Relu", ["x"], ["c"])], {"x": [1, 3, 6, 6]}, ["c"], {}, dtype=TensorProto.FLOAT16)

    def conv(edit: Edit) -> None:
        edit.redirect("c", edit.create("Conv", ["c"], name="new", weights={1: (2, 3, 1, 1)}).name, but=["new"])

    variant = changed(conv, load_model(data(half), name="half"))
    assert variant.model.weights["new/W"].dtype == np.float16


def test_a_deleted_tensor_must_have_no_readers() -> None:
    with pytest.raises(
        InvalidModelError, match="mutator 'own' at 'c': Conv node 'c' still reads 'b', which was deleted"
    ):
        changed(lambda edit: edit.delete("b"))
    with pytest.raises(InvalidModelError, match="graph output 'y' still refers to 'y', which was deleted"):
        changed(lambda edit: edit.delete("y"))


REFUSED: dict[str, tuple[Change, str]] = {
    "unknown node": (lambda edit: edit.delete("nobody"), "no node 'nobody'"),
    "unknown tensor": (lambda edit: edit.connect("nothing", "c", 0), "cannot read 'nothing'"),
    "unknown place": (lambda edit: edit.connect("a", "c", 7), "has 3 inputs; there is no input 7"),
    "unknown output": (lambda edit: edit.connect_output("a", "z"), "no output 'z'; it has 'y', 'b'"),
    "a weight returned": (lambda edit: edit.connect_output("wa", "y"), "nothing computes it"),
    "unknown operator": (lambda edit: edit.create("Cnov", ["a"], name="n"), "no operator 'Cnov' .* 'Conv'"),
    "unknown attribute": (
        lambda edit: edit.replace("c", attributes={"stride": (1, 1)}),
        "Conv has no attribute 'stride' .* 'strides'",
    ),
    "a wrong attribute": (
        lambda edit: edit.replace("c", attributes={"group": "two"}),
        "'group' of Conv cannot be 'two'",
    ),
    "no number": (
        lambda edit: edit.create("LeakyRelu", ["a"], name="n", attributes={"alpha": float("nan")}),
        "must be finite",
    ),
    "a graph inside": (
        lambda edit: edit.create("If", ["a"], name="n", attributes={"then_branch": 1}),
        "cannot be set",
    ),
    "a missing attribute": (lambda edit: edit.create("Concat", ["a", "b"], name="n"), "violates its operator's schema"),
    "a cycle": (lambda edit: edit.connect("y", "a", 0), "computed from its own output"),
    "itself": (lambda edit: edit.connect("b", "b", 0), "computed from its own output"),
    "a weight over a tensor": (lambda edit: edit.replace("c", weights={0: (1, 8, 6, 6)}), "where it needs a weight"),
    "a large constant": (lambda edit: edit.replace("c", weights={1: np.zeros((6, 8, 99, 99))}), "too large"),
    "no candidates": (lambda edit: edit.choose([], "what"), "candidates must be"),
    "equal candidates": (lambda edit: edit.choose([1, 1.0], "what"), "candidates must be"),
    "strange candidates": (lambda edit: edit.choose([np.int64(1)], "what"), "must be finite numbers or strings"),  # type: ignore[type-var]
    "no number to choose": (lambda edit: edit.choose([float("nan")], "what"), "must be finite numbers or strings"),
    "whole numbers": (
        lambda edit: edit.create("Reshape", ["a"], name="n", weights={1: (2,)}),
        "cannot be seeded",
    ),
    "a mutator's own fault": (lambda edit: [][0], "IndexError: list index out of range"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_edits_are_refused(what: str) -> None:
    change, message = REFUSED[what]
    with pytest.raises((UsageError, InvalidModelError), match=f"mutator 'own' at 'c'.*: .*{message}"):
        changed(change)


UNFIT: dict[str, tuple[Change, str]] = {
    "too few channels": (
        lambda edit: edit.replace("a", weights={1: (8, 4, 3, 3)}),
        "Conv node 'a' .* 1x3x6x6 and 8x4x3x3",
    ),
    "another kernel": (
        lambda edit: edit.replace("c", attributes={"kernel_shape": (1, 1)}),
        "Conv node 'c' does not fit its inputs",
    ),
    "a bias of another length": (lambda edit: edit.replace("c", weights={2: (5,)}), "1x8x6x6 and 6x8x3x3 and 5"),
    "nothing left": (
        lambda edit: edit.replace("c", attributes={"pads": (0,) * 4, "dilations": (3, 3)}),
        "Conv node 'c' has an empty result",
    ),
    "unlike sizes": (lambda edit: edit.replace("d", attributes={"strides": (2, 2)}), "Concat node 'y' does not fit"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_inconsistent_shapes_are_found_before_running(what: str) -> None:
    change, message = UNFIT[what]
    with pytest.raises(InvalidModelError, match=f"mutator 'own' at 'c': .*{message}"):
        changed(change)


def test_an_error_names_the_choices_before_it() -> None:
    def chosen(edit: Edit) -> None:
        edit.choose(["good", "bad"], "quality")
        edit.delete("b")

    with pytest.raises(InvalidModelError, match=r"at 'c' after own\[c\]/quality\{good,bad\} = good: "):
        changed(chosen)


def test_a_question_that_is_asked_again_has_a_number() -> None:
    def thrice(edit: Edit) -> None:
        for _ in range(3):
            edit.choose([1, 2], "what")
        edit.choose([1, 3], "what")
        edit.choose(["only"], "one")

    assert changed(thrice).choices == {
        "own[c]/what{1,2}": 1, "own[c]/what#2{1,2}": 1, "own[c]/what#3{1,2}": 1, "own[c]/what{1,3}": 1,
        "own[c]/one{only}": "only",
    }  # fmt: skip


def test_flags_and_numpys_numbers_are_recorded_as_plain_ones() -> None:
    def flagged(edit: Edit) -> None:
        assert edit.choose([False, True], "flag") is True
        edit.replace("c", attributes={"group": np.int64(1), "strides": np.array([1, 1])})
        edit.replace("y", "Concat", attributes={"axis": True}, inputs=["c", "d"])

    variant = variant_of(model(), [Custom("own", by_name("c"), lambda _, edit: flagged(edit))], lambda _: np.True_)
    check(variant)
    assert variant.choices == {"own[c]/flag{false,true}": True}


def test_an_answer_that_is_no_candidate_is_refused() -> None:
    asks = Custom("own", by_name("c"), lambda _, edit: edit.choose([1, 2], "what"))
    with pytest.raises(UsageError, match="chose index 2 of 2 candidates"):
        variant_of(model(), [asks], lambda _: 2)
