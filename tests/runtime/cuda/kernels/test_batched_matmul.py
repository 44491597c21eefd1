"""Products of matrices in batches by a kernel of our own: numbers, layouts, and attention in one graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from host_cuda import Placed, blank, check, needs_compiler, put, transposed, weight
from host_driver import HostChoice, HostDriver
from lowering import random_schedule
from node_kernels import FP16, FP32, lowered, normal
from onnx import helper
from small_models import loaded, proto_of

from iosched.models.model import Model
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Gpu, Kernel, Precision
from iosched.runtime.cuda.kernels import batched_matmul
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batched_matmul import BatchedMatMul
from iosched.runtime.cuda.kernels.product import MatMul, lower_product
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.cuda.source.activation import RELU, Activation
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

Shape = tuple[int, ...]


def product_shape(a: Shape, b: Shape) -> Shape:
    return np.matmul(np.empty(a, np.int8), np.empty(b, np.int8)).shape


def checked(a: Placed, b: Placed, *, before: int = 0, kernel: BatchedMatMul | None = None) -> None:
    y = blank(product_shape(a.array.shape, b.array.shape), a.array.dtype.name, before=before, after=before)
    check(kernel or BatchedMatMul(), [a, b], [y], 2e-5)


def width_of(source: str, name: str) -> int:
    return int(source.split(f"{name} = ")[1].split(",")[0].split(";")[0])


BROADCASTS: list[tuple[Shape, Shape]] = [
    ((3, 5, 7), (3, 7, 6)), ((4, 5, 7), (1, 7, 6)), ((1, 5, 7), (4, 7, 6)), ((5, 7), (4, 7, 6)), ((4, 5, 7), (7, 6)),
    ((2, 1, 5, 7), (1, 3, 7, 6)), ((2, 3, 5, 7), (3, 7, 6)), ((2, 3, 5, 7), (2, 3, 7, 6)),
    ((2, 1, 3, 5, 7), (1, 4, 1, 7, 6)), ((7,), (3, 7, 6)), ((3, 5, 7), (7,)), ((2, 3, 5, 7), (7,)), ((7,), (7,)),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("a", "b"), BROADCASTS)
def test_source_broadcasts_as_numpy_does(a: Shape, b: Shape) -> None:
    for before in (0, 1):
        checked(put(normal(*a), before=before), put(normal(*b, seed=1), before=before), before=before)
    checked(weight(normal(*a)), weight(normal(*b, seed=1)))


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(1, 1, 1), (1, 70, 5), (70, 1, 5), (33, 34, 35), (32, 32, 32), (31, 40, 64), (5, 36, 100), (64, 8, 33)],
)
def test_source_of_sizes_that_are_no_multiples_of_tiles(rows: int, columns: int, depth: int, dtype: str) -> None:
    scale = np.float32(depth**-0.5)
    a, b = (scale * normal(2, rows, depth)).astype(dtype), normal(2, depth, columns).astype(dtype)
    checked(put(a), put(b))
    checked(transposed(a), transposed(b), before=3)


@needs_compiler
@pytest.mark.parametrize("tile", batched_matmul._TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_source_of_every_tile(tile: batched_matmul._Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a tile and more than a slab each way, with packs and without, either axis dense."""
    monkeypatch.setattr(batched_matmul, "_TILES", (tile,))
    for odd in (0, 1):
        a = normal(2, tile.rows + 12 + odd, tile.depth + 4 + odd)
        b = normal(1, tile.depth + 4 + odd, tile.columns + 4 + odd)
        checked(put(a), put(b))
        checked(transposed(a), transposed(b))


@needs_compiler
def test_source_ends_in_the_activation() -> None:
    for activation in (RELU, Activation("HardSwish")):
        checked(put(normal(2, 5, 7)), put(normal(2, 7, 6)), kernel=BatchedMatMul(activation))


def test_accesses_are_as_wide_as_strides_and_offsets_allow() -> None:
    def widths(a: Placed, b: Placed, before: int = 0) -> tuple[int, ...]:
        y = blank(product_shape(a.array.shape, b.array.shape), before=before, after=before)
        source = BatchedMatMul().call([a.view, b.view], [y.view]).source
        return tuple(width_of(source, name) for name in ("WA", "WB", "WY"))

    a, b = normal(2, 12, 8), normal(2, 8, 20)
    assert widths(put(a), put(b)) == (4, 4, 2)  # a thread of the smallest tile has two columns
    assert widths(transposed(a), transposed(b)) == (4, 4, 2)
    assert widths(put(a, before=1), put(b, before=2), before=1) == (1, 2, 1)
    assert widths(put(normal(2, 12, 6)), put(normal(2, 6, 21))) == (2, 1, 1)


def test_few_outputs_use_small_tiles_and_many_use_large_ones() -> None:
    def blocks(batches: int, rows: int, columns: int) -> int:
        shapes = (batches, rows, 64), (batches, 64, columns), (batches, rows, columns)
        a, b, y = (blank(shape).view for shape in shapes)
        return BatchedMatMul().call([a, b], [y]).grid[0]

    assert blocks(12, 64, 64) == 12 * 4
    assert blocks(64, 1024, 1024) == 64 * 8 * 8


def test_tiles_are_chosen_for_the_processors_of_the_gpu() -> None:
    shapes = (12, 128, 64), (12, 64, 128), (12, 128, 128)
    a, b, y = (blank(shape).view for shape in shapes)

    def blocks(processors: int) -> int:
        return BatchedMatMul(processors=processors).call([a, b], [y]).grid[0]

    assert blocks(4) < blocks(132)


# The lowering of MatMul to it.


@pytest.mark.parametrize(("a", "b"), [shapes for shapes in BROADCASTS if len(shapes[1]) != 2])
@needs_compiler
def test_matmul_in_strict_float32(a: Shape, b: Shape) -> None:
    case = lowered(helper.make_node("MatMul", ["a", "b"], ["y"]), {"a": normal(*a), "b": normal(*b, seed=1)})
    assert isinstance(case.calls[-1].kernel, BatchedMatMul)
    case.compare(on_host=True, before=1)


@pytest.mark.parametrize("precision", [FP16, Precision("tf32")])
def test_other_precisions_use_cudnn_where_it_supports_the_product(precision: Precision) -> None:
    for a, b in BROADCASTS:
        if len(b) == 2:
            continue
        case = lowered(
            helper.make_node("MatMul", ["a", "b"], ["y"]),
            {"a": normal(*a), "b": normal(*b, seed=1)},
            precision=precision,
        )
        batches = [int(np.prod(shape[:-2])) for shape in (a, b)]
        simple = (
            min(len(a), len(b)) > 1
            and int(np.prod(product_shape(a, b)[:-2])) in batches
            and (batches[0] == batches[1] or 1 in batches)
        )
        kernels = {type(call.kernel) for call in case.calls}
        assert (MatMul if simple else BatchedMatMul) in kernels
        case.compare()


@pytest.mark.parametrize(
    ("capability", "k", "n", "kind"),
    [
        *((70, k, n, BatchedMatMul) for k, n in ((36, 48), (40, 44), (64, 197))),
        (70, 40, 48, MatMul),
        (75, 40, 44, BatchedMatMul),
        (75, 40, 48, MatMul),
        (80, 64, 197, BatchedMatMul),
        (80, 37, 48, BatchedMatMul),
        (80, 38, 42, MatMul),
        *((capability, 37, 197, MatMul) for capability in (86, 89, 90, 100, 120)),
    ],
)
def test_older_gpus_multiply_unaligned_half_precision_rows_in_our_kernel(
    capability: int, k: int, n: int, kind: type[Kernel]
) -> None:
    inputs = {"a": normal(3, 33, k), "b": normal(3, k, n, seed=1)}
    node, gpu = helper.make_node("MatMul", ["a", "b"], ["y"]), Gpu(capability, processors=80)
    case = lowered(node, inputs, precision=FP16, gpu=gpu)
    assert [type(call.kernel) for call in case.calls] == [kind]
    case.compare()
    if gpu.has_tf32:
        (call,) = lowered(node, inputs, precision=Precision("tf32"), gpu=gpu).calls
        assert isinstance(call.kernel, MatMul)


def test_constants_are_read_in_place() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    for inputs, weights in (("a", "b"), ("b", "a")):
        arrays = {"a": normal(2, 3, 5, 7), "b": normal(2, 3, 7, 6)}
        case = lowered(node, {inputs: arrays[inputs]}, {weights: arrays[weights]})
        assert len(case.calls) == 2  # the other one is copied
        case.compare()


@pytest.mark.parametrize("added", [False, True])
def test_an_activation_is_fused_but_a_sum_is_not(added: bool) -> None:
    arrays = {"a": normal(3, 5, 7), "b": normal(3, 7, 6), "c": normal(3, 5, 6)}
    nodes = [helper.make_node("MatMul", ["a", "b"], ["m"])]
    nodes += [helper.make_node("Add", ["c", "m"], ["s"])] if added else []
    nodes.append(helper.make_node("Sigmoid", ["s" if added else "m"], ["y"]))
    inputs = {name: array.shape for name, array in arrays.items() if added or name != "c"}
    builder = Builder.of(loaded(proto_of(nodes, inputs, ["y"])), FP32)
    assert lower_product(builder, nodes)
    assert [type(call.kernel) for call in builder.calls] == ([BatchedMatMul, AddN] if added else [BatchedMatMul])
    known = dict(arrays)
    for call in builder.calls:
        known[call.writes[0]] = np.empty((3, 5, 6), np.float32)
        call.kernel.interpret([known[name] for name in call.reads], [known[call.writes[0]]])
    wanted = arrays["a"] @ arrays["b"] + (arrays["c"] if added else 0)
    np.testing.assert_allclose(known["y"], Activation("Sigmoid")(wanted), rtol=1e-5, atol=1e-5)


def test_a_product_with_a_constant_bias_is_not_lowered_as_a_unit() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["m"]), helper.make_node("Add", ["m", "c"], ["y"])]
    model = loaded(proto_of(nodes, {"a": (3, 5, 7), "b": (3, 7, 6)}, ["y"], {"c": normal(6)}))
    builder = Builder.of(model, FP32)
    assert not lower_product(builder, nodes)
    assert not builder.calls


# Attention.


def attention(batch: int, heads: int, tokens: int, size: int) -> Model:
    """Queries, keys and values of one product, scaled scores, softmax, values, and a projection."""
    width = heads * size
    weights = {
        "w": normal(width, 3 * width) / np.float32(width**0.5),
        "bias": normal(3 * width),
        "out": normal(width, width) / np.float32(width**0.5),
        "heads": np.array([batch, tokens, 3 * heads, size], np.int64),
        "flat": np.array([batch, tokens, width], np.int64),
        "scale": np.array(size**-0.5, np.float32),
    }
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["projected"]),
        node("Add", ["projected", "bias"], ["biased"]),
        node("Reshape", ["biased", "heads"], ["split"]),
        node("Transpose", ["split"], ["turned"], perm=[0, 2, 1, 3]),
        node("Split", ["turned"], ["q", "k", "v"], axis=1, num_outputs=3),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["seen"]),
        node("Transpose", ["seen"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "flat"], ["joined"]),
        node("MatMul", ["joined", "out"], ["summed"]),
        node("Add", ["summed", "x"], ["y"]),
    ]
    kinds = {"x": (onnx.TensorProto.FLOAT, (batch, tokens, width))}
    return loaded(proto_of(nodes, kinds, ["y"], weights, opset=18))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("batch", [1, 2])
def test_attention_needs_no_session(batch: int, precision: str) -> None:
    model = attention(batch, 3, 9, 8)
    network = LoweredModel(model, Precision(precision))
    for seed in range(3):
        lowering = lower(network, random_schedule(model.graph, seed))
        assert not lowering.sessions
        inputs = random_inputs(model.graph.inputs, seed)
        error = relative_error(interpreted(lowering, inputs, seed), expected_outputs(model, inputs))
        assert error < (2e-2 if precision == "fp16" else 1e-5)


@needs_compiler
@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_attention_is_one_captured_graph(batch: int) -> None:
    model, driver = attention(batch, 3, 9, 8), HostDriver()
    lowering = lower(LoweredModel(model, FP32), greedy(model.graph))
    executor = CudaExecutor(lowering, driver, HostChoice(driver))
    executor.poison()
    for seed in range(2):
        inputs = random_inputs(model.graph.inputs, seed)
        found = executor.run({view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs})
        named = {name.removesuffix("@caller"): array for name, array in found.items()}
        assert relative_error(named, expected_outputs(model, inputs)) < 1e-5
    assert executor.is_captured
    assert any(isinstance(kernel, BatchedMatMul) for kernel in lowering.kernels)
