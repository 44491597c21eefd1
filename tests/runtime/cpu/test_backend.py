"""Every model that onnxruntime runs has the same outputs, or is left to plain onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from accepted_models import MODELS as ACCEPTED
from accepted_models import recurrent
from lowering import baselines, check_everything, check_schedules
from onnx import TensorProto, helper
from small_models import FLOAT, loaded, proto_of, weight

from iosched.models.errors import InvalidModelError
from iosched.models.export import write_model
from iosched.runtime.compare import compare
from iosched.runtime.cpu import optimized
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
INT64, BOOL, DOUBLE, HALF, INT8 = (
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT8,
)


def body(nodes: list[onnx.NodeProto], outputs: list[str], inputs: list[onnx.ValueInfoProto] | None = None):
    values = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    return helper.make_graph(nodes, "body", inputs or [], values)


def branch_with_captures() -> onnx.ModelProto:
    """An If whose branches read a computed tensor, a small and a large weight of the graph around it."""
    yes = body([node("MatMul", ["h", "w"], ["yes"])], ["yes"])
    no = body([node("Mul", ["h", "small"], ["m"]), node("Neg", ["m"], ["no"])], ["no"])
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["positive"]),
        node("If", ["positive"], ["chosen"], then_branch=yes, else_branch=no),
        node("Sigmoid", ["h"], ["beside"]),
        node("Add", ["chosen", "beside"], ["y"]),
    ]
    weights = {"w": weight(32, 32), "small": weight(1, 32), "zero": np.float32(0).reshape(())}
    return proto_of(nodes, {"x": (4, 32)}, ["y"], weights)


def loop() -> onnx.ModelProto:
    """A Loop that carries a tensor, reads one from outside, and scans."""
    inner = helper.make_graph(
        [
            node("MatMul", ["carried", "w"], ["m"]),
            node("Add", ["m", "h"], ["next"]),
            node("Identity", ["go"], ["still"]),
            node("ReduceSum", ["next"], ["seen"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("carried", FLOAT, [2, 32]),
        ],
        [
            helper.make_tensor_value_info("still", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [2, 32]),
            helper.make_tensor_value_info("seen", FLOAT, []),
        ],
    )
    nodes = [
        node("Tanh", ["x"], ["h"]),
        node("Loop", ["n", "", "h"], ["last", "scan"], body=inner),
        node("Relu", ["last"], ["y"]),
    ]
    weights = {"w": weight(32, 32), "n": np.array(3, np.int64)}
    return proto_of(nodes, {"x": (2, 32)}, ["y", "scan"], weights)


def size_known_late() -> onnx.ModelProto:
    """The number of nonzero values is known only at run time: of an inner tensor, and of an output."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("NonZero", ["r"], ["places"]),
        node("Transpose", ["places"], ["rows"]),
        node("GatherND", ["r", "rows"], ["kept"]),
        node("Exp", ["kept"], ["e"]),
        node("ReduceSum", ["e"], ["total"], keepdims=1),
        node("Sigmoid", ["x"], ["s"]),
        node("Mul", ["s", "total"], ["y"]),
    ]
    return proto_of(nodes, {"x": (3, 8)}, {"y": FLOAT, "places": INT64, "e": FLOAT})


def many_types() -> onnx.ModelProto:
    nodes = [
        node("Cast", ["x"], ["d"], to=DOUBLE),
        node("Sqrt", ["d"], ["root"]),
        node("Cast", ["x"], ["h"], to=HALF),
        node("Mul", ["h", "h"], ["square"]),
        node("ArgMax", ["x"], ["best"], axis=1),
        node("Greater", ["x", "half"], ["big"]),
        node("Not", ["big"], ["small"]),
        node("And", ["small", "mask"], ["both"]),
        node("Add", ["best", "k"], ["index"]),
        node("Where", ["both", "x", "half"], ["y"]),
    ]
    outputs = {"root": DOUBLE, "square": HALF, "index": INT64, "both": BOOL, "y": FLOAT}
    inputs = {"x": (2, 8), "mask": (BOOL, (2, 8)), "k": (INT64, (2, 1))}
    return proto_of(nodes, inputs, outputs, {"half": np.float32(0.5).reshape(())})


def quantized() -> onnx.ModelProto:
    """int8 between QuantizeLinear and DequantizeLinear, two branches."""
    scales = {"s": np.float32(0.05).reshape(()), "z": np.int8(3).reshape(()), "ws": np.float32(0.01).reshape(())}
    kernel = np.random.default_rng(0).integers(-60, 60, (8, 8, 3, 3)).astype(np.int8)
    weights = {**scales, "wz": np.int8(0).reshape(()), "w1": kernel, "w2": kernel[::-1].copy()}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["xq"]), node("DequantizeLinear", ["xq", "s", "z"], ["xd"])]
    for name in ("1", "2"):
        nodes += [
            node("DequantizeLinear", [f"w{name}", "ws", "wz"], [f"wd{name}"]),
            node("Conv", ["xd", f"wd{name}"], [f"c{name}"], pads=[1] * 4),
            node("QuantizeLinear", [f"c{name}", "s", "z"], [f"q{name}"]),
            node("DequantizeLinear", [f"q{name}", "s", "z"], [f"d{name}"]),
        ]
    nodes.append(node("Concat", ["d1", "d2"], ["y"], axis=1))
    return proto_of(nodes, {"x": (1, 8, 6, 6)}, ["y"], weights)


def several_inputs_and_outputs() -> onnx.ModelProto:
    """`h` is an output and read inside; `a` and `h` are read by two."""
    nodes = [
        node("Relu", ["a"], ["h"]),
        node("Conv", ["h", "w"], ["c"], pads=[1] * 4),
        node("Add", ["c", "b"], ["s"]),
        node("Concat", ["h", "s", "a"], ["y"], axis=1),
        node("GlobalAveragePool", ["y"], ["z"]),
    ]
    shape = (1, 16, 5, 5)
    return proto_of(nodes, {"a": shape, "b": shape}, ["h", "y", "z", "s"], {"w": weight(16, 16, 3, 3)})


def outputs_from_outside() -> onnx.ModelProto:
    """Outputs that no node computes: an input, a small weight, a large one."""
    weights = {"small": weight(3), "large": weight(40, 40)}
    return proto_of([node("Relu", ["x"], ["y"])], {"x": (2, 5)}, ["y", "x", "small", "large"], weights)


def sequence_inside() -> onnx.ModelProto:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("SplitToSequence", ["r", "one"], ["seq"], axis=0),
        node("SequenceAt", ["seq", "one"], ["second"]),
        node("ConcatFromSequence", ["seq"], ["again"], axis=1),
        node("Exp", ["second"], ["y"]),
        node("Neg", ["again"], ["z"]),
    ]
    return proto_of(nodes, {"x": (3, 4)}, ["y", "z"], {"one": np.array(1, np.int64)})


def single_node() -> onnx.ModelProto:
    return proto_of([node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"])


def lstm() -> onnx.ModelProto:
    weights = {"w": weight(1, 32, 6), "r": weight(1, 32, 8), "b": weight(1, 64)}
    nodes = [
        node("LSTM", ["x", "w", "r", "b"], ["all", "", "cell"], hidden_size=8),
        node("Squeeze", ["all", "axis"], ["flat"]),
        node("Relu", ["flat"], ["y"]),
        node("Tanh", ["cell"], ["z"]),
    ]
    return proto_of(nodes, {"x": (5, 2, 6)}, ["y", "z"], {**weights, "axis": np.array([1], np.int64)})


def gelu() -> onnx.ModelProto:
    """Written out as exporters do; onnxruntime makes one com.microsoft node of five."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Div", ["m", "root2"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["m", "p"], ["q"]),
        node("Mul", ["q", "half"], ["g"]),
        node("MatMul", ["g", "v"], ["y"]),
    ]
    scalars = {"root2": 2**0.5, "one": 1.0, "half": 0.5}
    weights = {name: np.float32(value).reshape(()) for name, value in scalars.items()}
    return proto_of(nodes, {"x": (1, 6, 16)}, ["y"], {**weights, "w": weight(16, 32), "v": weight(32, 16)})


def folded_nodes() -> onnx.ModelProto:
    """Identity, Dropout and a Cast to the same type cost onnxruntime nothing: their operators have no node."""
    nodes = [
        node("Identity", ["x"], ["i"]),
        node("Relu", ["i"], ["r"]),
        node("Dropout", ["r"], ["d", ""]),
        node("Cast", ["d"], ["c"], to=FLOAT),
        node("Sigmoid", ["c"], ["y"]),
        node("Identity", ["y"], ["z"]),
    ]
    return proto_of(nodes, {"x": (2, 3)}, ["y", "z"])


def two_results() -> onnx.ModelProto:
    nodes = [
        node("TopK", ["x", "k"], ["values", "places"], axis=1),
        node("Relu", ["values"], ["y"]),
        node("Gather", ["x", "first"], ["g"], axis=1),
    ]
    weights = {"k": np.array([3], np.int64), "first": np.array([0], np.int64)}
    return proto_of(nodes, {"x": (2, 8)}, {"y": FLOAT, "places": INT64, "g": FLOAT}, weights)


def optional_results() -> onnx.ModelProto:
    nodes = [
        node("MaxPool", ["x"], ["p", "unused"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxPool", ["x"], ["q", "places"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Dropout", ["p"], ["d"]),
        node("Add", ["d", "q"], ["y"]),
    ]
    return proto_of(nodes, {"x": (1, 8, 4, 4)}, {"y": FLOAT, "places": INT64})


def same_bytes_twice() -> onnx.ModelProto:
    """`s` is `t` reshaped back and forth: two names of the same bytes, read together and one after the other."""
    nodes = [
        node("Exp", ["x"], ["t"]),
        node("Unsqueeze", ["t", "axis"], ["u"]),
        node("Neg", ["u"], ["n"]),
        node("Squeeze", ["u", "axis"], ["s"]),
        node("Sin", ["t"], ["a"]),
        node("Cos", ["s"], ["b"]),
        node("Sub", ["t", "b"], ["c"]),
        node("MatMul", ["t", "s"], ["y"]),
        node("Add", ["a", "c"], ["z"]),
    ]
    return proto_of(nodes, {"x": (8, 8)}, ["y", "z", "n"], {"axis": np.array([0], np.int64)})


def nothing_but_outputs_of_no_size() -> onnx.ModelProto:
    """Tensors of no elements are legal everywhere."""
    nodes = [
        node("Slice", ["x", "start", "stop", "axis"], ["none"]),
        node("Relu", ["none"], ["r"]),
        node("Concat", ["r", "x", "none"], ["y"], axis=0),
    ]
    weights = {name: np.array([value], np.int64) for name, value in {"start": 0, "stop": 0, "axis": 0}.items()}
    return proto_of(nodes, {"x": (2, 3)}, ["y", "r"], weights)


def sums_of_nothing() -> onnx.ModelProto:
    """Each in its own task, with a dependency on another one that shows in no bytes."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("ReduceSum", ["r", "k"], ["s"], keepdims=0),
        node("Abs", ["x"], ["a"]),
        node("ReduceSum", ["a", "k"], ["t"], keepdims=0),
        node("Concat", ["s", "t"], ["y"], axis=0),
    ]
    return proto_of(nodes, {"x": (2, 0, 3), "k": (INT64, (1,))}, ["y"])


def scalars() -> onnx.ModelProto:
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Relu", ["s"], ["r"]),
        node("Unsqueeze", ["r", "zero"], ["u"]),
        node("Concat", ["u", "u", "k"], ["y"], axis=0),
    ]
    return proto_of(nodes, {"x": (2, 3), "k": (1,)}, ["y", "s"], {"zero": np.array([0], np.int64)})


ODD: tuple[Callable[[], onnx.ModelProto], ...] = (
    branch_with_captures, loop, size_known_late, many_types, quantized, several_inputs_and_outputs,
    outputs_from_outside, sequence_inside, single_node, lstm, gelu, folded_nodes, two_results, optional_results,
    same_bytes_twice, nothing_but_outputs_of_no_size, sums_of_nothing,
    scalars, *ACCEPTED,
)  # fmt: skip


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_an_unusual_model_computes_the_same_as_plain_onnxruntime(make: Callable[[], onnx.ModelProto]) -> None:
    check_everything(loaded(make()), lanes=(1, 2, 3))


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_the_executor_in_python_agrees(make: Callable[[], onnx.ModelProto]) -> None:
    model = loaded(make())
    inputs = random_inputs(model.graph.inputs)
    with CpuBackend(model, lanes=2, native=False) as backend, Reference(model) as reference:
        compiled = backend.compile(sequential(backend.graph))
        assert compare(compiled.run(inputs), reference.run(inputs)).passed
        compiled.close()


def test_two_names_of_the_same_bytes_stay_two_inputs_of_one_kernel() -> None:
    """The case above is meaningful only while onnxruntime keeps both names."""
    with CpuBackend(loaded(same_bytes_twice()), lanes=1) as backend:
        plan = backend.lower(sequential(backend.graph)).plan
    seen = [[view for view in task.reads if view.buffer == "t"] for lane in plan.lanes for task in lane]
    assert any(len(views) == 2 and views[0] == views[1] for views in seen)


def test_producer_and_readers_of_a_dynamic_size_are_in_one_unit() -> None:
    with CpuBackend(loaded(size_known_late()), lanes=2) as backend:
        unit_of = backend.coarse.units.unit_of
        assert unit_of["places"] == unit_of["rows"] == unit_of["kept"] == unit_of["e"] == unit_of["total"]
        assert unit_of["s"] != unit_of["total"]


def test_operators_inside_a_fusion_cost_nothing() -> None:
    with CpuBackend(loaded(gelu()), lanes=2) as backend:
        assert any(kernel.op_type == "Gelu" and kernel.domain == "com.microsoft" for kernel in backend.kernels.nodes)
        unit_of = backend.coarse.units.unit_of
        assert unit_of["d"] == unit_of["e"] == unit_of["p"] == unit_of["q"] == unit_of["m"] != unit_of["g"]
        assert [len(backend.coarse.nodes[unit]) for unit in backend.coarse.units.members] == [1, 1, 1]


CELLS = [
    *((kind, outputs) for kind in ("LSTM", "GRU", "RNN") for outputs in (["", "h"], ["y"])),
    *(("LSTM", outputs) for outputs in (["", "", "c"], ["y", "", "c"])),
]


@pytest.mark.parametrize(("kind", "outputs"), CELLS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_operators_may_omit_outputs(kind: str, outputs: list[str], direction: str) -> None:
    model = loaded(recurrent(kind, outputs, direction=direction))
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, baselines(backend.graph), seeds=(0,))


def text_input() -> onnx.ModelProto:
    nodes = [node("Cast", ["x"], ["n"], to=FLOAT), node("Relu", ["n"], ["y"])]
    return proto_of(nodes, {"x": (TensorProto.STRING, (2,))}, ["y"])


def sequence_input() -> onnx.ModelProto:
    made = proto_of([node("ConcatFromSequence", ["seq"], ["y"], axis=0)], {"x": (1,)}, ["y"])
    del made.graph.input[:]
    made.graph.input.append(helper.make_tensor_sequence_value_info("seq", FLOAT, [2, 2]))
    return made


def only_weights() -> onnx.ModelProto:
    """All of it is folded before it runs."""
    return proto_of([node("Exp", ["w"], ["y"])], {"x": (1,)}, ["y", "x"], {"w": weight(3, 3)})


@pytest.mark.parametrize("make", [text_input, sequence_input, only_weights], ids=lambda make: make.__name__)
def test_a_model_without_a_plan_is_declined(make: Callable[[], onnx.ModelProto]) -> None:
    with CpuBackend(loaded(make()), lanes=2) as backend:
        assert not backend.is_supported()


def test_a_model_that_onnxruntime_writes_but_cannot_read_back_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some loops over sequences are such models."""
    open_session = optimized.open_session

    def opened(source: bytes | Path, options: object, **more: object) -> object:
        if isinstance(source, Path):
            raise InvalidModelError("in single static assignment form")
        return open_session(source, options, **more)

    monkeypatch.setattr(optimized, "open_session", opened)
    with CpuBackend(loaded(several_inputs_and_outputs()), lanes=2) as backend:
        assert not backend.is_supported()


def test_a_model_with_inner_strings_is_supported() -> None:
    nodes = [node("Cast", ["x"], ["s"], to=TensorProto.STRING), node("Cast", ["s"], ["y"], to=FLOAT)]
    check_everything(loaded(proto_of(nodes, {"x": (INT64, (2, 3))}, ["y"])))


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize(
    ("kind", "opset"), [("BFLOAT16", 17), ("FLOAT8E4M3FN", 21), ("FLOAT8E5M2", 28), ("INT4", 21), ("UINT2", 28)]
)
def test_types_without_numpy_dtype_are_passed_and_returned(kind: str, opset: int, native: bool | None) -> None:
    number = getattr(TensorProto, kind)
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Cast", ["a"], ["y"], to=number),
        node("Cast", ["y"], ["z"], to=FLOAT),
    ]
    proto = proto_of(nodes, {"x": (3, 5)}, {"y": number, "z": FLOAT}, opset=opset)
    proto.ir_version = 13
    model = loaded(proto)
    inputs = random_inputs(model.graph.inputs)
    with CpuBackend(model, lanes=2, native=native) as backend, Reference(model) as reference:
        found, expected = backend.compile(sequential(backend.graph)).run(inputs), reference.run(inputs)
    for name, value in expected.items():
        assert (
            found[name].dtype == value.dtype == onnx.helper.tensor_dtype_to_np_dtype(number if name == "y" else FLOAT)
        )
        np.testing.assert_array_equal(found[name].astype(np.float32), value.astype(np.float32))
    assert expected["z"].any()


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
def test_four_bit_weights_keep_their_values(kind: str, native: bool | None) -> None:
    """In the plan, in the optimized graph, and in the file written from it."""
    packed = np.arange(64 * 128).reshape(64, 128) % 7
    weights = {
        "w": packed.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))),
        "s": np.array(0.5, np.float32),
    }
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"]),
        node("MatMul", ["x", "d"], ["y"]),
        node("DequantizeLinear", ["w", "by"], ["z"]),
    ]
    proto = proto_of(nodes, {"x": (3, 64), "by": ()}, ["y", "z"], weights, opset=21)
    proto.ir_version = 10
    model = loaded(proto)
    x = random_inputs(model.graph.inputs)
    written = write_model(model.proto, model.weights, None)
    assert written is not None
    with CpuBackend(model, lanes=2, native=native) as backend:
        found = [backend.compile(sequential(backend.graph)).run(x)]
    for source in (written, replace(model, original=None), model):
        with Reference(source) as reference:
            found.append(reference.run(x))
    expected = found.pop()
    np.testing.assert_allclose(expected["y"], x["x"] @ (packed.astype(np.float32) / 2), atol=0.5)  # it rounds x, too
    for each in found:
        np.testing.assert_allclose(each["y"], expected["y"], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(each["z"], packed * x["by"])


def test_the_caller_may_overwrite_outputs_that_no_node_computes() -> None:
    model = loaded(outputs_from_outside())
    inputs = random_inputs(model.graph.inputs)
    with CpuBackend(model, lanes=1) as backend:
        compiled = backend.compile(sequential(backend.graph))
        first = compiled.run(inputs)
        for array in first.values():
            array.fill(7)
        second = compiled.run(random_inputs(model.graph.inputs))
        compiled.close()
    np.testing.assert_array_equal(inputs["x"], random_inputs(model.graph.inputs)["x"])
    for name in ("small", "large"):
        np.testing.assert_array_equal(second[name], model.weights[f"{name}/weight"])


def test_inputs_of_any_memory_layout_are_accepted() -> None:
    model = loaded(several_inputs_and_outputs())
    inputs = random_inputs(model.graph.inputs)
    strided = {name: np.asfortranarray(array) for name, array in inputs.items()}
    with CpuBackend(model, lanes=2) as backend:
        compiled = backend.compile(sequential(backend.graph))
        assert compare(compiled.run(strided), compiled.run(inputs), rtol=0).passed
        compiled.close()
