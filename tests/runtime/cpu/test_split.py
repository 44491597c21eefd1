"""The parts of a divided node, run one by one, compute exactly the whole node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import baselines, check_schedules
from onnx import helper
from parts import check_model, check_parts
from small_models import FLOAT, loaded, proto_of, weight

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.split import split

node = helper.make_node
ONE = np.float32(0.3).reshape(())
PARTS = st.integers(2, 5)


NCHWC = "com.microsoft.nchwc"


@given(
    batch=st.integers(1, 3), channels=st.integers(1, 40), results=st.integers(1, 70), kernel=st.sampled_from([1, 3]),
    stride=st.integers(1, 2), parts=PARTS, bias=st.booleans(), relu=st.booleans(), summed=st.booleans(),
)  # fmt: skip
def test_convolutions_in_blocked_or_plain_layout(
    batch: int, channels: int, results: int, kernel: int, stride: int, parts: int, bias: bool, relu: bool, summed: bool
) -> None:
    """Channels that fill no block, too few for the blocked layout, with and without a sum and an activation."""
    weights = {"w": weight(results, channels, kernel, kernel), "v": weight(results, channels, 1, 1, seed=1)}
    weights["b"] = weight(results)
    pads = [kernel // 2] * 4
    nodes = [node("Conv", ["x", "w", *(["b"] if bias else [])], ["c"], pads=pads, strides=[stride] * 2)]
    if summed:
        nodes.append(node("Conv", ["x", "v"], ["d"], strides=[stride] * 2))
        nodes.append(node("Add", ["c", "d"], ["s"]))
    nodes.append(node("Relu" if relu else "Sin", [nodes[-1].output[0]], ["y"]))
    found = check_model(proto_of(nodes, {"x": (batch, channels, 5, 5)}, ["y"], weights), parts)
    cuts = max(pieces for (_, kind), pieces in found.items() if kind.endswith("Conv"))
    if batch > 1:
        assert cuts == min(parts, batch)
    elif results >= 64:
        assert cuts > 1


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("given", [{"x"}, {"w", "b"}], ids=lambda names: "+".join(sorted(names)))
def test_convolutions_whose_image_or_filters_are_constant(groups: int, given: set[str]) -> None:
    values = {"x": weight(1, 16, 5, 5), "w": weight(32, 16 // groups, 3, 3), "b": weight(32)}
    shapes = {name: values[name].shape for name in sorted(given)}
    constants = {name: array for name, array in values.items() if name not in given}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], group=groups), node("Sin", ["c"], ["y"])]
    found = check_model(proto_of(nodes, shapes, ["y"], constants), 3)
    assert max(pieces for (_, kind), pieces in found.items() if kind == "Conv") > 1


@pytest.mark.parametrize("size", [6, 40])
def test_a_convolution_that_adds_to_the_image_it_reads(size: int) -> None:
    """A part cannot read all of a tensor and add to some of it."""
    weights = {"f": weight(64, 3, 1, 1), "w": weight(64, 64, 3, 3)}
    nodes = [node("Conv", ["x", "f"], ["i"]), node("Relu", ["i"], ["r"]), node("Conv", ["r", "w"], ["c"], pads=[1] * 4)]
    nodes += [node("Add", ["c", "r"], ["s"]), node("Relu", ["s"], ["y"])]
    model = loaded(proto_of(nodes, {"x": (1, 3, size, size)}, ["y"], weights))
    for lanes in (2, 4):
        with CpuBackend(model, lanes=lanes) as backend:
            check_schedules(model, backend, baselines(backend.graph))


@given(
    batch=st.integers(1, 3),
    blocks=st.integers(1, 5),
    more=st.sampled_from([0, 8]),
    size=st.sampled_from([3, 5]),
    parts=PARTS,
)
def test_depthwise_convolutions(batch: int, blocks: int, more: int, size: int, parts: int) -> None:
    channels = 16 * blocks + more
    weights = {"w": weight(channels, 1, size, size), "b": weight(channels), "p": weight(32, channels, 1, 1)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["d"], group=channels, pads=[size // 2] * 4),
        node("Relu", ["d"], ["r"]),
        node("Conv", ["r", "p"], ["y"]),
    ]
    found = check_model(proto_of(nodes, {"x": (batch, channels, 6, 6)}, ["y"], weights), parts)
    assert batch > 1 or blocks < 2 or max(found.values()) > 1


@given(
    batch=st.integers(1, 2), groups=st.integers(2, 5), taken=st.sampled_from([1, 3, 16]),
    results=st.sampled_from([1, 2, 5, 16, 32]), kernel=st.sampled_from([1, 3]), parts=PARTS, relu=st.booleans(),
)  # fmt: skip
def test_convolutions_in_groups(
    batch: int, groups: int, taken: int, results: int, kernel: int, parts: int, relu: bool
) -> None:
    """Groups stay whole: in the blocked layout, where blocks of channels allow it, and in the plain one."""
    weights = {"w": weight(groups * results, taken, kernel, kernel), "b": weight(groups * results)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], group=groups, pads=[kernel // 2] * 4),
        node("Relu" if relu else "Sin", ["c"], ["y"]),
    ]
    found = check_model(proto_of(nodes, {"x": (batch, groups * taken, 6, 6)}, ["y"], weights), parts)
    cuts = max(pieces for (_, kind), pieces in found.items() if kind.endswith("Conv"))
    if batch > 1:
        assert cuts == min(parts, batch)
    elif results > 1 and (results * groups) % 16:  # in the plain layout
        assert cuts == min(parts, groups)


def test_group_is_not_cut_inside_a_block_of_channels() -> None:
    """Of the blocked layout; onnxruntime makes no such convolution itself."""
    weights = {"w": weight(32, 16, 1, 1)}
    proto = proto_of([node("Conv", ["x", "w"], ["y"], group=2)], {"x": (1, 32, 6, 6)}, ["y"], weights)
    kernels = build_kernel_graph(loaded(proto))
    index, found = next((i, each) for i, each in enumerate(kernels.nodes) if each.op_type == "Conv")
    assert found.domain == NCHWC
    assert len(split(kernels, index, 2)) == 2
    assert split(replace(kernels, channel_block=64), index, 2) == ()


@given(
    batch=st.integers(1, 3), blocks=st.integers(1, 4), kind=st.sampled_from(["MaxPool", "AveragePool"]),
    stride=st.integers(1, 2), whole=st.booleans(), parts=PARTS, convolved=st.booleans(),
)  # fmt: skip
def test_pools_in_blocked_and_plain_layout(
    batch: int, blocks: int, kind: str, stride: int, whole: bool, parts: int, convolved: bool
) -> None:
    channels = 16 * blocks
    nodes = [node("Conv", ["x", "w"], ["c"])] if convolved else []
    source = "c" if convolved else "x"
    sizes = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [stride] * 2}
    nodes.append(node(f"Global{kind}", [source], ["y"]) if whole else node(kind, [source], ["y"], **sizes))
    proto = proto_of(nodes, {"x": (batch, channels, 6, 6)}, ["y"], {"w": weight(channels, channels, 1, 1)})
    found = check_model(proto, parts)
    cuts = max(pieces for (_, name), pieces in found.items() if name.endswith("Pool"))
    assert cuts > 1 or (batch == 1 and blocks == 1)


@given(
    channels=st.integers(8, 30).map(lambda n: 4 * n), results=st.integers(17, 90), parts=PARTS, batch=st.integers(1, 2)
)
def test_layout_conversions_with_incomplete_blocks(channels: int, results: int, parts: int, batch: int) -> None:
    proto = proto_of(
        [node("Conv", ["x", "w"], ["c"]), node("Sin", ["c"], ["y"])],
        {"x": (batch, channels, 4, 4)},
        ["y"],
        {"w": weight(results, channels, 1, 1)},
    )
    found = check_model(proto, parts)
    for kind in ("ReorderInput", "ReorderOutput"):
        assert found.get((NCHWC, kind), 2) > 1


@given(
    rows=st.integers(1, 5), inner=st.integers(1, 9), results=st.integers(1, 80), parts=PARTS,
    bias=st.sampled_from([None, (1,), (), "row", "matrix"]), alpha=st.sampled_from([1.0, 0.5]), trans=st.booleans(),
    relu=st.booleans(),
)  # fmt: skip
def test_gemm(
    rows: int, inner: int, results: int, parts: int, bias: object, alpha: float, trans: bool, relu: bool
) -> None:
    shapes = {"row": (1, results), "matrix": (rows, results)}
    weights = {"w": weight(*((results, inner) if trans else (inner, results)))}
    if bias is not None:
        shape = shapes[bias] if isinstance(bias, str) else bias
        weights["b"] = np.random.default_rng(0).standard_normal(shape).astype(np.float32).reshape(shape)
    inputs = ["x", "w", *(["b"] if bias is not None else [])]
    nodes = [node("Gemm", inputs, ["g"], transB=int(trans), alpha=alpha, beta=2.0)]
    nodes.append(node("Relu" if relu else "Sin", ["g"], ["y"]))
    found = check_model(proto_of(nodes, {"x": (rows, inner)}, ["y"], weights), parts)
    gemm = max(pieces for (_, kind), pieces in found.items() if kind.endswith("Gemm"))
    if rows == 1:
        assert gemm > 1 or not trans or results <= 16 or (isinstance(bias, str) and bias == "matrix")
    elif bias != "matrix":
        assert gemm == min(parts, rows)


UNARY = (
    "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Selu", "Erf", "Exp", "Neg", "Abs", "HardSwish", "Softplus",
    "Softsign", "Celu", "Log", "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Cos",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Pow")
COMPARED = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), kind=st.sampled_from(UNARY), parts=PARTS
)  # fmt: skip
def test_elementwise_of_one_operand(shape: list[int], kind: str, parts: int) -> None:
    found = check_model(proto_of([node(kind, ["x"], ["y"])], {"x": shape}, ["y"]), parts)
    assert max(found.values()) > 1 or max(shape) == 1


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), kind=st.sampled_from(BINARY), parts=PARTS,
    dropped=st.integers(0, 4), ones=st.sets(st.integers(0, 3)), constant=st.booleans(), first=st.booleans(),
)  # fmt: skip
def test_elementwise_with_broadcast_operands(
    shape: list[int], kind: str, parts: int, dropped: int, ones: set[int], constant: bool, first: bool
) -> None:
    """The other operand has fewer axes, or some of size one; it is computed or constant, left or right."""
    other = [1 if axis in ones else size for axis, size in enumerate(shape)][min(dropped, len(shape)) :]
    operands = ["o", "e"] if first else ["e", "o"]
    nodes = [node("Exp", ["x"], ["e"]), node(kind, operands, ["z"]), node("Sin", ["z"], ["y"])]
    value = np.abs(np.random.default_rng(0).standard_normal(other)).astype(np.float32).reshape(other)
    inputs = {"x": shape} if constant else {"x": shape, "o": other}
    kernels = build_kernel_graph(loaded(proto_of(nodes, inputs, ["y"], {"o": value} if constant else {})))
    for index, each in enumerate(kernels.nodes):
        pieces = split(kernels, index, parts)
        if pieces and kind != "Pow":  # the power of a negative number is NaN in both
            check_parts(kernels, index, pieces)
        assert pieces or each.op_type not in ("Exp", kind) or max(shape) == 1


@pytest.mark.parametrize("other", [(1, 5, 4), (5, 1), (4,), ()])
@pytest.mark.parametrize("kind", COMPARED)
def test_comparisons_and_where(kind: str, other: tuple[int, ...]) -> None:
    """As in an attention mask, which has fewer axes than the scores."""
    nodes = [node(kind, ["x", "o"], ["c"]), node("Not", ["c"], ["n"]), node("And", ["n", "given"], ["a"])]
    nodes += [node("Or", ["a", "c"], ["m"]), node("Where", ["m", "x", "low"], ["w"]), node("Sin", ["w"], ["y"])]
    proto = proto_of(nodes, {"x": (1, 5, 4), "o": other}, ["y"], {"low": ONE, "given": np.eye(5, 4) > 0})
    found = check_model(proto, 2)
    assert all(pieces == 2 for pieces in found.values())


@pytest.mark.parametrize("channels", [5, 32, 48, 144])
@pytest.mark.parametrize("parts", [2, 3])
def test_swish_and_its_product_with_a_number_for_each_channel(channels: int, parts: int) -> None:
    """Cut like the convolutions around them, where channels are whole blocks: no core reads data of another one."""
    weights = {"w": weight(channels, 3, 3, 3), "v": weight(channels, channels, 1, 1)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["t"]),
        node("Mul", ["t", "g"], ["u"]),
        node("Conv", ["u", "v"], ["y"]),
    ]
    proto = proto_of(nodes, {"x": (1, 3, 9, 9), "g": (1, channels, 1, 1)}, ["y"], weights)
    found = check_model(proto, parts)
    assert found["com.microsoft", "QuickGelu"] == parts
    kernels = build_kernel_graph(loaded(proto))
    cuts = [[piece.slices[each.output[0]].start for piece in split(kernels, i, parts)]
            for i, each in enumerate(kernels.nodes)]  # fmt: skip
    assert channels < parts * kernels.channel_block or all(cut == cuts[0] for cut in cuts)


@pytest.mark.parametrize("batch", [2, 3, 4, 7])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    ("made", "cut_apart"),
    [
        (node("Concat", ["x", "x2"], ["y"], axis=1), True),
        (node("Concat", ["x", "x2"], ["y"], axis=-1), True),
        (node("Concat", ["x", "x2"], ["y"], axis=0), False),
        (node("Concat", ["x", "x2"], ["y"], axis=-3), False),
        (node("Concat", ["x", "k"], ["y"], axis=1), True),
        (node("Transpose", ["x"], ["y"], perm=[0, 2, 1]), True),
        (node("Transpose", ["x"], ["y"], perm=[1, 0, 2]), False),
        (node("Transpose", ["x"], ["y"]), False),
        (node("Flatten", ["x"], ["y"], axis=2), False),
        (node("Flatten", ["x"], ["y"], axis=0), False),
        (node("BatchNormalization", ["x", "s", "b", "s", "v"], ["y"]), True),
        (node("LRN", ["i"], ["y"], size=3), True),
        (node("MaxPool", ["i"], ["y"], kernel_shape=[2, 2]), True),
        (node("MaxPool", ["i"], ["y", "places"], kernel_shape=[2, 2]), False),
        (node("CumSum", ["x", "zero"], ["y"]), False),
        (node("Clip", ["x", "low", ""], ["y"]), True),
        (node("PRelu", ["x", "slope"], ["y"]), True),
        (node("Add", ["x", "slope"], ["y"]), True),
        (node("Add", ["x", "k"], ["y"]), True),
        (node("Mul", ["x", "row"], ["y"]), True),
        (node("Gemm", ["flat", "m"], ["y"]), True),
        (node("Gemm", ["flat2", "m"], ["y"], transA=1), False),
        (node("Gemm", ["square", "square2", "column"], ["y"]), True),
        (node("Gemm", ["square", "square"], ["y"]), False),
        (node("Conv", ["i", "filters", "biases"], ["y"]), True),
        (node("Conv", ["i", "i"], ["y"], pads=[2] * 4), False),
    ],
    ids=lambda value: f"{value.op_type} {' '.join(value.input)}" if isinstance(value, onnx.NodeProto) else "",
)  # fmt: skip
def test_batches_are_split_at_independent_rows(made: onnx.NodeProto, cut_apart: bool, batch: int, parts: int) -> None:
    """The batch is split exactly where the node keeps its rows apart, and no other axis of the same length is."""
    shapes = {
        "x": (batch, 4, 6), "x2": (batch, 4, 6), "i": (batch, 4, 5, 5), "flat": (batch, 6), "flat2": (6, batch),
        "row": (batch, 1, 6), "square": (batch, batch), "square2": (batch, batch), "column": (batch, 1),
        "filters": (batch, 4, 3, 3), "biases": (batch,),
    }  # fmt: skip
    constants = {
        "s": np.abs(weight(4)) + 1, "b": weight(4), "v": np.abs(weight(4)) + 1, "k": weight(batch, 4, 6), "low": ONE,
        "slope": weight(4, 1), "m": weight(6, 5), "zero": np.array(0, np.int64),
    }  # fmt: skip
    inputs = {name: shapes[name] for name in made.input if name in shapes}
    weights = {name: constants[name] for name in made.input if name in constants}
    found = check_model(proto_of([made], inputs, {"y": FLOAT}, weights), parts)
    pieces = max(found.values())
    assert pieces == (min(batch, parts) if cut_apart else 0)


def test_elementwise_operators_between_grouped_convolutions_are_cut_at_groups() -> None:
    """In the plain layout, as ShuffleNet's are: 272 channels in four groups are cut at 136, and at no block of 16."""
    weights = {"w": weight(272, 68, 1, 1), "v": weight(272, 68, 1, 1, seed=1)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], group=4),
        node("Add", ["c", "x"], ["s"]),
        node("Conv", ["s", "v"], ["y"], group=4),
    ]
    kernels = build_kernel_graph(loaded(proto_of(nodes, {"x": (1, 272, 5, 5)}, ["y"], weights)))
    starts = {split(kernels, i, 2)[1].slices[each.output[0]].start for i, each in enumerate(kernels.nodes)}
    assert starts == {136 * 25}


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)), parts=PARTS)
def test_batch_normalization(shape: tuple[int, int, int, int], parts: int) -> None:
    """After an operator that onnxruntime does not run in blocks, it stays as it is."""
    weights = {name: np.abs(weight(shape[1], seed=seed)) + 1 for seed, name in enumerate("abmv")}
    nodes = [node("Sin", ["x"], ["s"]), node("BatchNormalization", ["s", *"abmv"], ["n"]), node("Sin", ["n"], ["y"])]
    found = check_model(proto_of(nodes, {"x": shape}, ["y"], weights), parts)
    assert found["", "BatchNormalization"] == min(parts, shape[0] if shape[0] > 1 else shape[1]) or shape[:2] == (1, 1)


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 4), pads=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    still=st.integers(0, 3), mode=st.sampled_from(["constant", "edge"]), parts=PARTS,
)  # fmt: skip
def test_pads(shape: tuple[int, int, int, int], pads: list[int], still: int, mode: str, parts: int) -> None:
    """The axes up to `still` are not padded."""
    amounts = [0 if place % 4 <= still else pad for place, pad in enumerate(pads)]
    nodes = [node("Sin", ["x"], ["s"]), node("Pad", ["s", "p"], ["q"], mode=mode), node("Sin", ["q"], ["y"])]
    found = check_model(proto_of(nodes, {"x": shape}, ["y"], {"p": np.array(amounts)}), parts)
    assert found.get(("", "Pad"), parts) > 1 or max(shape[: still + 1]) == 1


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 4), axes=st.sets(st.integers(-4, 3), min_size=1), start=st.integers(0, 1),
    step=st.integers(1, 2), parts=PARTS,
)  # fmt: skip
def test_slices(shape: tuple[int, int, int, int], axes: set[int], start: int, step: int, parts: int) -> None:
    taken = sorted({axis % 4: axis for axis in axes if shape[axis] > 2}.values())
    values = {"b": [start] * len(taken), "e": [9] * len(taken), "a": taken, "t": [step] * len(taken)}
    nodes = [node("Sin", ["x"], ["s"]), node("Slice", ["s", *values], ["q"]), node("Sin", ["q"], ["y"])]
    weights = {name: np.array(value, np.int64) for name, value in values.items()}
    check_model(proto_of(nodes, {"x": shape}, ["y"], weights), parts)


def test_a_slice_of_rows_is_split_by_channels() -> None:
    weights = {name: np.array([value]) for name, value in (("b", 1), ("e", 4), ("a", 2))}
    nodes = [node("Sin", ["x"], ["s"]), node("Slice", ["s", *weights], ["q"]), node("Sin", ["q"], ["y"])]
    assert check_model(proto_of(nodes, {"x": (1, 6, 5, 5)}, ["y"], weights), 3)["", "Slice"] == 3
