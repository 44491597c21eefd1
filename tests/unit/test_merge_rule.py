"""Which convolutions may be merged: only those whose zero-padded kernels stay centred."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.scheduler.merge import can_merge, merge_classes

BASE = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1, "activation": ""}


def conv(name: str, source: str = "x", **changes: object) -> Operator:
    given = {**BASE, **changes}
    attributes = tuple(
        sorted({("kernel_shape" if key == "kernel" else key): value for key, value in given.items()}.items())
    )
    weights = (TensorSpec("w" + name, "float32", (4, 4, *given["kernel"])),)
    return Operator(name, "Conv", (name,), (source,), (name,), attributes, weights)


def graph_of(*operators: Operator) -> ComputationGraph:
    inputs = (TensorSpec("x", "float32", (1, 4, 8, 8)), TensorSpec("y", "float32", (1, 4, 8, 8)))
    return ComputationGraph("g", inputs, (operators[-1].name,), operators, ())


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"kernel": (1, 1), "pads": (0, 0, 0, 0)},
        {"kernel": (5, 5), "pads": (2, 2, 2, 2)},
        {"kernel": (1, 3), "pads": (0, 1, 0, 1)},
    ],
)
def test_centred_kernels_of_one_input_merge(other: dict[str, object]) -> None:
    assert can_merge(graph_of(conv("a"), conv("b", **other)), ("a", "b"))


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": (2, 2), "pads": (0, 0, 0, 0)},  # the counterexample, at stride 1
        {"kernel": (1, 1)},  # too much padding
        {"kernel": (1, 1), "pads": (0, 0, 2, 2)},  # the right sum on the wrong sides
        {"strides": (2, 2)},
        {"dilations": (2, 2), "pads": (2, 2, 2, 2)},
        {"group": 4},
        {"activation": "Relu"},
        {"source": "y"},
    ],
)
def test_anything_else_does_not(other: dict) -> None:
    assert not can_merge(graph_of(conv("a"), conv("b", **other)), ("a", "b"))


def test_equal_output_size_is_not_enough() -> None:
    """3x3 with padding 1 and 2x2 with padding 0, both at stride 2, have equal outputs on 4x4 and cannot be merged."""
    strided = conv("a", strides=(2, 2)), conv("b", strides=(2, 2), kernel=(2, 2), pads=(0, 0, 0, 0))
    assert not can_merge(graph_of(*strided), ("a", "b"))


def changed(operator: Operator, **changes: object) -> Operator:
    return replace(operator, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (conv("a", group=4), conv("b", group=4)),
        (changed(conv("a"), type="MaxPool"), changed(conv("b"), type="MaxPool")),
        (changed(conv("a"), inputs=("x", "y")), changed(conv("b"), inputs=("x", "y"))),
        (changed(conv("a"), weights=()), changed(conv("b"), weights=())),
        (conv("a"), changed(conv("b"), weights=(TensorSpec("wb", "float16", (4, 4, 3, 3)),))),
        (conv("a", strides=(1,)), conv("b", strides=(1,))),
        (changed(conv("a"), attributes=()), changed(conv("b"), attributes=())),
    ],
    ids=["grouped", "no convolution", "two inputs", "no weights", "other type", "half a stride", "nothing known"],
)
def test_what_never_merges_does_not_merge_with_its_like_either(one: Operator, other: Operator) -> None:
    assert not can_merge(graph_of(one, other), ("a", "b"))
    assert merge_classes(graph_of(one, other), ("a", "b")) == ()


DILATED = {"dilations": (2, 2), "pads": (2, 2, 2, 2)}


@pytest.mark.parametrize(
    ("other", "merges"),
    [
        ({"kernel": (5, 5), "pads": (4, 4, 4, 4)}, True),
        ({"kernel": (1, 1), "pads": (0, 0, 0, 0)}, True),
        ({"kernel": (1, 1), "pads": (1, 1, 1, 1)}, False),
        ({"kernel": (2, 2), "pads": (1, 1, 1, 1)}, False),  # equal output size, but its taps fall between the others
    ],
)
def test_dilated_kernels_are_centred_by_their_reach(other: dict[str, object], merges: bool) -> None:
    pair = conv("a", **DILATED), conv("b", **{**DILATED, **other})

    assert can_merge(graph_of(*pair), ("a", "b")) == merges


def test_an_operator_does_not_merge_alone_or_with_itself() -> None:
    graph = graph_of(conv("a"), conv("b"))
    assert not can_merge(graph, ["a"])
    assert not can_merge(graph, ["a", "a"])


def test_classes_are_the_largest_mergeable_sets() -> None:
    graph = graph_of(conv("a"), conv("b", group=4), conv("c", kernel=(1, 1), pads=(0, 0, 0, 0)), conv("d", "y"))
    assert merge_classes(graph, ["a", "b", "c", "d"]) == (("a", "c"),)
