"""The parts of a node divided along leading axes, run one by one, compute exactly the whole node."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import check_everything
from onnx import helper
from parts import check_model
from small_models import loaded, proto_of, weight

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
LIMITS = settings(max_examples=12)
PARTS = st.integers(2, 5)
STACKS = st.lists(st.integers(1, 4), max_size=2)


def between(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes between two others, so that their inputs and outputs are computed tensors."""
    return [node("Sin", ["x"], ["a"]), *nodes, node("Sin", ["b"], ["y"])]


def first_of(shape: list[int], parts: int) -> int:
    """Number of parts of the first of these axes that is not 1."""
    return min(next((size for size in shape if size > 1), 0), parts)


@LIMITS
@given(
    stack=STACKS, rows=st.integers(1, 9), inner=st.integers(1, 7), columns=st.integers(1, 9), parts=PARTS,
    ones=st.sets(st.integers(0, 1)), dropped=st.integers(0, 2), left=st.booleans(), constant=st.booleans(),
    scale=st.booleans(),
)  # fmt: skip
def test_products(
    stack: list[int], rows: int, inner: int, columns: int, parts: int, ones: set[int], dropped: int, left: bool,
    constant: bool, scale: bool,
) -> None:  # fmt: skip
    """Of stacks of matrices one may be lower, repeated, or constant; a single matrix is cut between its rows."""
    few = [1 if axis in ones else size for axis, size in enumerate(stack)][min(dropped, len(stack)) :]
    lower, higher = (few, stack) if left else (stack, few)
    operands = {"x": [*lower, rows, inner], "z": [*higher, inner, columns]}
    nodes = [node("MatMul", ["a", "z"], ["m" if scale else "b"])]
    if scale:
        nodes.append(node("Mul", ["m", "eighth"], ["b"]))
    weights = {"eighth": weight(1)} if scale else {}
    if constant:
        weights["z"] = weight(*operands.pop("z"))
    found = check_model(proto_of(between(nodes), operands, ["y"], weights), parts)
    cut = max((pieces for (_, kind), pieces in found.items() if kind.endswith("MatMul")), default=None)
    is_lower = len(lower) < len(higher)
    expected = first_of([*stack, *([] if is_lower and max(stack, default=1) == 1 else [rows])], parts)
    assert cut is None or cut == (expected if expected > 1 else 0)


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_of_an_attention(batch: int) -> None:
    """A product with a transpose, which onnxruntime fuses, a softmax over keys, and its product with values."""
    shape = (batch, 4, 6, 8)
    nodes = [
        node("Transpose", ["z"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["x", "t"], ["m"]),
        node("Softmax", ["m"], ["s"], axis=-1),
        node("MatMul", ["s", "v"], ["y"]),
    ]
    proto = proto_of(nodes, {"x": shape, "z": shape, "v": shape}, ["y"])
    found = check_model(proto, 2)
    assert found == {("com.microsoft", "FusedMatMul"): 2, ("", "Softmax"): 2, ("", "MatMul"): 2}
    check_everything(loaded(proto), seeds=(0,))


@pytest.mark.parametrize(
    ("left", "right"), [((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((4,), (4,))]
)
def test_products_with_a_vector_run_whole(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    proto = proto_of(between([node("MatMul", ["a", "z"], ["b"])]), {"x": left, "z": right}, ["y"])
    assert check_model(proto, 2)["", "MatMul"] == 0


@pytest.mark.parametrize(("shape", "cut"), [((4, 4), 0), ((3, 4, 4), 3)])
def test_the_square_of_a_matrix_is_split_only_in_batches(shape: tuple[int, ...], cut: int) -> None:
    proto = proto_of(between([node("MatMul", ["a", "a"], ["b"])]), {"x": shape}, ["y"])
    assert check_model(proto, 3)["", "MatMul"] == cut


@LIMITS
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), axis=st.integers(-4, 3), parts=PARTS,
    kind=st.sampled_from(["Softmax", "LogSoftmax"]), opset=st.sampled_from([9, 17]), named=st.booleans(),
)  # fmt: skip
def test_softmax_over_an_axis(shape: list[int], axis: int, parts: int, kind: str, opset: int, named: bool) -> None:
    """Before opset 13 all axes after the first are one, unless the node sets the axis."""
    rank = len(shape)
    axis = axis % rank
    attributes = {"axis": axis} if named or rank == 1 else {}
    found = check_model(
        proto_of(between([node(kind, ["a"], ["b"], **attributes)]), {"x": shape}, ["y"], opset=opset), parts
    )
    first = axis if attributes else (rank - 1 if opset > 9 else 1)
    assert found["", kind] == first_of(shape[:first], parts)


@LIMITS
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), axis=st.integers(0, 3), parts=PARTS, bias=st.booleans(),
)  # fmt: skip
def test_normalizations(shape: list[int], axis: int, parts: int, bias: bool) -> None:
    axis %= len(shape)
    weights = {"scale": weight(*shape[axis:]), **({"bias": weight(*shape[axis:])} if bias else {})}
    made = node("LayerNormalization", ["a", *weights], ["b"], axis=axis)
    found = check_model(proto_of(between([made]), {"x": shape}, ["y"], weights), parts)
    assert found["", "LayerNormalization"] == first_of(shape[:axis], parts)


def test_a_normalization_whose_mean_is_read_runs_whole() -> None:
    made = node("LayerNormalization", ["a", "scale"], ["b", "mean"])
    proto = proto_of(between([made]), {"x": (4, 3)}, ["y", "mean"], {"scale": weight(3)})
    assert check_model(proto, 2)["", "LayerNormalization"] == 0
