"""Layers by name, and the mutators that insert them or replace operators by them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import Custom, check, exported
from onnx import helper
from small_models import data, feeds_for, proto_of, run, weight

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Edit, Question
from iosched.models.mutation.mutator import (
    InputMutator,
    InsertingMutator,
    Mutator,
    OperatorMutator,
    by_name,
    by_type,
    chain,
    layer_of,
    window,
)
from iosched.models.mutation.variant import Variant, variant_of

node = helper.make_node
LAYERS = ("conv1", "conv3", "dconv5", "max_pool3", "average_pool2", "identity", "conv3_relu", "max_pool1_relu")


def model() -> Model:
    """stem (3 -> 8, stride 2), a and b of it (8 -> 8), their sum; 9 pixels wide, then 5."""
    nodes = [
        node("Conv", ["x", "w"], ["stem"], pads=[1] * 4, strides=[2, 2]),
        node("Conv", ["stem", "u"], ["a/conv"]),
        node("Relu", ["a/conv"], ["a"]),
        node("Conv", ["stem", "v"], ["b"], pads=[1] * 4),
        node("Add", ["a", "b"], ["y"]),
    ]
    weights = {"w": weight(8, 3, 3, 3), "u": weight(8, 8, 1, 1), "v": weight(8, 8, 3, 3)}
    return load_model(data(proto_of(nodes, {"x": [1, 3, 9, 9]}, ["y"], weights)), name="base")


def made(mutator: Mutator, *choices: object, base: Model | None = None) -> Variant:
    """The variant in which these are chosen, in order, after it was checked."""
    left = list(choices)

    def answer(question: Question) -> int:
        return question.candidates.index(left.pop(0))  # type: ignore[arg-type]

    variant = variant_of(base or model(), [mutator], answer)
    assert not left
    check(variant)
    return variant


def types(variant: Variant) -> dict[str, str]:
    return {item.name: item.op_type for item in variant.model.proto.graph.node}


@pytest.mark.parametrize("layer", LAYERS)
def test_an_operator_is_replaced_by_a_layer_of_any_kind(layer: str) -> None:
    """The stem halves the size and changes the number of channels: layers do both."""
    variant = made(OperatorMutator("op", by_name("stem"), ["keep", *LAYERS]), layer)
    assert variant.choices == {"op[stem]/layer{" + ",".join(["keep", *LAYERS]) + "}": layer}
    assert "stem" not in types(variant)
    assert {"a/conv", "a", "b", "y"} >= variant.unmodified >= {"a", "y"}


def test_kept_targets_are_unmodified() -> None:
    variant = made(OperatorMutator("op", by_name("b"), ["keep", "conv5"]), "keep")
    assert variant.unmodified == set(types(variant))
    assert variant.model.digest == variant.base.digest


def test_a_chain_is_replaced_as_one() -> None:
    variant = made(OperatorMutator("op", chain("Conv", "Relu"), ["max_pool3"]))
    assert types(variant) == {"stem": "Conv", "a/max_pool3": "MaxPool", "b": "Conv", "y": "Add"}


def test_custom_layers_replace_operators() -> None:
    def scaled(edit: Edit, source: str, shape: tuple[int, ...], name: str) -> str:
        return edit.create("Mul", [source], name=name, weights={1: np.array([2], np.float32)}).name

    variant = made(OperatorMutator("op", by_name("a"), {"twice": scaled, "identity": layer_of("identity")}), "twice")
    assert types(variant)["a/twice"] == "Mul"
    variant = made(OperatorMutator("op", by_name("a"), {"twice": scaled, "identity": layer_of("identity")}), "identity")
    assert types(variant) == {"stem": "Conv", "a/conv": "Conv", "b": "Conv", "y": "Add"}


def test_layers_are_inserted_in_sequence() -> None:
    variant = made(InsertingMutator("in", by_name("stem"), ["conv3", "max_pool3"], most=3), 2, "conv3", "max_pool3")
    graph = variant.model.graph
    assert graph.predecessors["stem/max_pool3"] == ("stem/conv3",)
    assert graph.predecessors["stem/conv3"] == ("stem",)
    assert graph.successors["stem"] == ("stem/conv3",)
    assert made(InsertingMutator("in", by_name("stem"), ["conv3"], most=3), 0).record.primitives == ()


def test_an_input_mutator_changes_the_tensors_that_are_read() -> None:
    variant = made(InputMutator("input", by_type("Add")), "b", "stem")
    assert [tuple(item.input) for item in variant.model.proto.graph.node if item.name == "y"] == [("b", "stem")]
    assert "a" not in types(variant)


def test_descendants_of_an_operator_are_no_candidates() -> None:
    asked: list[Question] = []

    def answer(question: Question) -> int:
        asked.append(question)
        return 0

    variant_of(model(), [InputMutator("input", by_name("b", "y"), most=3)], answer)
    assert [question.candidates for question in asked] == [
        ("stem", "a", "a/conv"),
        ("a", "b", "a/conv"),
        ("b", "a", "a/conv"),
    ]


def test_later_mutators_match_results_of_earlier_ones() -> None:
    inserting = InsertingMutator("in", by_name("b"), ["conv3"])
    variant = variant_of(model(), [inserting, OperatorMutator("op", by_name("b/*"), ["identity"])], lambda q: 1)
    check(variant)
    assert variant.unmodified == set(types(variant)) == set(types(variant_of_nothing()))


def variant_of_nothing() -> Variant:
    return variant_of(model(), [], lambda question: 0)


def test_unknown_layers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no layer 'conv0'; choose from conv3, .*"):
        layer_of("conv0")


def test_layers_need_batch_channels_and_sizes() -> None:
    flat = load_model(data(proto_of([node("Relu", ["x"], ["y"])], {"x": [1, 3]}, ["y"])), name="flat")
    with pytest.raises(UsageError, match=r"mutator 'op' at 'y'.*: no layer turns 'x' of shape \(1, 3\) into \(1, 3\)"):
        variant_of(flat, [OperatorMutator("op", by_name("y"), ["conv3"])], lambda question: 0)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 7))
def test_a_window_makes_the_wanted_size_if_possible(size: int, wanted: int, kernel: int) -> None:
    def makes(stride: int, padding: int) -> bool:
        return size + padding >= kernel and (size + padding - kernel) // stride + 1 == wanted

    possible = any(makes(stride, padding) for stride, padding in product(range(1, size + 1), range(2 * kernel - 1)))
    found = window(size, wanted, kernel)
    assert (found is not None) == possible
    if found is not None:
        stride, before, behind = found
        assert makes(stride, before + behind)
        assert 0 <= before <= behind < kernel
        assert not any(makes(less, padding) for less, padding in product(range(1, stride), range(2 * kernel - 1)))


def widened(channels: int, nodes: list[object], weights: dict[str, np.ndarray], shape: tuple[int, ...]) -> Variant:
    """Convolution a, with more channels, in front of `nodes`, which read it."""
    first = node("Conv", ["x", "first"], ["a"])
    proto = proto_of([first, *nodes], {"x": shape}, ["y"], {"first": weight(4, 2, 1, 1), **weights})  # type: ignore[list-item]

    def change(edit: Edit) -> None:
        edit.replace("a", weights={1: (channels, 2, 1, 1)})
        edit.refit("a")

    variant = variant_of(
        load_model(data(proto)), [Custom("own", by_name("a"), lambda _, edit: change(edit))], lambda _: 0
    )
    check(variant)
    return variant


@pytest.mark.parametrize("channels", [3, 6])
def test_weights_after_changed_channels_are_refitted(channels: int) -> None:
    nodes = [
        node("BatchNormalization", ["a", "s", "s", "s", "s"], ["norm"]),
        node("Conv", ["norm", "deep", "bias"], ["deep/conv"], group=4, pads=[1] * 4),
        node("PRelu", ["deep/conv", "slope"], ["slope/relu"]),
        node("Mul", ["slope/relu", "one"], ["scaled"]),
        node("Conv", ["scaled", "point"], ["point/conv"]),
        node("Flatten", ["scaled"], ["flat"]),
        node("Gemm", ["flat", "matrix"], ["gemm"], transB=1),
        node("MatMul", ["gemm", "product"], ["matmul"]),
        node("GlobalAveragePool", ["point/conv"], ["pool"]),
        node("Flatten", ["pool"], ["row"]),
        node("Add", ["row", "matmul"], ["y"]),
    ]
    weights = {
        "s": np.abs(weight(4)) + 1, "deep": weight(4, 1, 3, 3), "bias": weight(4), "slope": weight(4, 1, 1),
        "one": weight(1, 4, 1, 1), "point": weight(5, 4, 1, 1), "matrix": weight(7, 36), "product": weight(7, 5),
    }  # fmt: skip
    variant = widened(channels, nodes, weights, (1, 2, 3, 3))
    found = {item.name: item for item in variant.model.proto.graph.node}
    weights = dict(variant.model.weights)
    shapes = {name: [weights[own].shape for own in found[name].input[1:] if own in weights] for name in found}
    assert shapes["norm"] == [(channels,)] * 4
    assert shapes["deep/conv"] == [(channels, 1, 3, 3), (channels,)]
    assert shapes["slope/relu"] == [(channels, 1, 1)]
    assert shapes["scaled"] == [(1, channels, 1, 1)]
    assert shapes["point/conv"] == [(5, channels, 1, 1)]
    assert shapes["gemm"] == [(7, channels * 9)]
    assert shapes["matmul"] == [(7, 5)]
    assert {"matmul", "pool", "row", "y"} <= variant.unmodified
    assert (variant.record.sliced == {}) == (channels > 4)


def test_a_reshape_is_refitted_where_only_one_size_can_change() -> None:
    def shape_behind(*target: int) -> tuple[int, ...]:
        weights = {"s": np.array(target), "w": weight(4, 5)}
        nodes = [node("Reshape", ["a", "s"], ["r"]), node("ReduceSum", ["r"], ["y"], keepdims=0)]
        return widened(6, nodes, weights, (1, 2, 3, 3)).model.graph.tensor["r"].shape or ()

    assert shape_behind(1, 36) == (1, 54)
    assert shape_behind(-1, 9) == (6, 9)
    assert shape_behind(4, 1, 9) == (6, 1, 9)  # 1 to 1.5 is impossible, as is 9 to 13.5
    with pytest.raises(InvalidModelError, match="Reshape node 'r' cannot reshape 1x6x3x3 to 1x2x2x9"):
        shape_behind(1, 2, 2, 9)  # either 2


def test_sums_whose_shapes_no_longer_match_are_an_error() -> None:
    nodes = [node("Conv", ["x", "w"], ["b"]), node("Add", ["a", "b"], ["y"])]
    with pytest.raises(InvalidModelError, match="mutator 'own' at 'a': Add node 'y' does not fit its inputs"):
        widened(6, list(nodes), {"w": weight(4, 2, 1, 1)}, (1, 2, 3, 3))


def test_refitted_models_compute_with_all_their_channels() -> None:
    """A convolution of only the first channels would compute the same as the base."""
    variant = widened(6, [node("Conv", ["a", "w"], ["y"])], {"w": weight(4, 4, 1, 1)}, (1, 2, 3, 3))
    feeds = feeds_for(variant.base)
    assert not np.allclose(run(exported(variant.model), feeds)["y"], run(exported(variant.base), feeds)["y"])
