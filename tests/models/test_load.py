"""A loaded model computes the same as its file, in any form of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import FLOAT, LIGHT, data, feeds_for, proto_of, run, units, weight, with_weights

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.model import INLINE_NBYTES, Model

node = helper.make_node


def assert_computes_the_same(proto: onnx.ModelProto, **bindings: object) -> Model:
    model = load_model(data(proto), **bindings)  # type: ignore[arg-type]
    feeds = feeds_for(model)
    expected, found = run(data(proto), feeds), run(with_weights(model), feeds)
    assert list(expected) == list(found) == list(model.graph.outputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    covered = [name for operator in model.graph.operators for name in operator.nodes]
    assert sorted(covered) == sorted(item.name for item in model.proto.graph.node)
    return model


def small_net(**keywords: object) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["p", "p"], ["y"], axis=1),
    ]
    weights = {"w": weight(16, 3, 3, 3), "b": weight(16)}
    return proto_of(nodes, {"x": [2, 3, 8, 8]}, ["y"], weights, **keywords)  # type: ignore[arg-type]


def test_a_plain_network():
    model = assert_computes_the_same(small_net())
    assert units(model) == [("Conv", 2), ("MaxPool", 1), ("Concat", 1)]
    assert model.bindings == {"x": (2, 3, 8, 8)}
    assert model.graph.tensor["r"].shape == (2, 16, 8, 8)
    assert model.graph.tensor["y"].nbytes == 2 * 32 * 4 * 4 * 4


def test_the_working_graph_keeps_its_contract():
    model = load_model(data(small_net()))
    assert [item.name for item in model.proto.graph.node] == ["c", "r", "p", "y"]
    assert set(model.weights) == {item.name for item in model.proto.graph.initializer}
    assert not any(array.flags.writeable for array in model.weights.values())
    for tensor in model.proto.graph.initializer:
        outside = tensor.data_location == TensorProto.EXTERNAL
        assert outside == (model.weights[tensor.name].nbytes > INLINE_NBYTES)
    assert model.proto.ir_version >= 10
    assert model.proto.opset_import[0].version == 17


def test_weights_among_the_inputs_of_an_old_file_are_constants():
    proto = small_net(opset=9, ir_version=3)
    proto.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [16, 3, 3, 3]))
    model = assert_computes_the_same(proto)
    assert [spec.name for spec in model.graph.inputs] == ["x"]


def test_constant_subgraphs_are_folded():
    nodes = [
        node("Constant", [], ["two"], value_float=2.0),
        node("ConstantOfShape", ["dims"], ["ones"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        node("Mul", ["ones", "two"], ["twos"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Concat", ["batch", "rest"], ["target"], axis=0),
        node("Add", ["x", "twos"], ["sum"]),
        node("Reshape", ["sum", "target"], ["y"]),
    ]
    constants = {"dims": np.array([3, 4]), "zero": np.array([0]), "rest": np.array([-1])}
    proto = proto_of(nodes, {"x": ["N", 3, 4]}, ["y"], constants)
    model = assert_computes_the_same(proto, batch_size=5)
    assert units(model) == [("Add", 1), ("Reshape", 1)]
    assert model.graph.tensor["y"].shape == (5, 12)
    assert model.weights["target"].tolist() == [5, -1]


@pytest.mark.parametrize(
    ("part", "sizes"), [({}, [2, 3, 4]), ({"start": 1}, [3, 4]), ({"end": -1}, [2, 3]), ({"start": -2, "end": 2}, [3])]
)
def test_a_part_of_a_shape_is_folded_to_that_part(part: dict[str, int], sizes: list[int]) -> None:
    nodes = [node("Shape", ["x"], ["part"], **part), node("Expand", ["one", "part"], ["y"]), node("Relu", ["x"], ["z"])]
    proto = proto_of(nodes, {"x": [2, 3, 4]}, ["y", "z"], {"one": np.ones(1, np.float32)})
    model = assert_computes_the_same(proto)
    assert model.graph.tensor["y"].shape == tuple(sizes)


def test_a_constant_reshape_keeps_the_axes_that_zeros_name():
    nodes = [node("Reshape", ["w", "target"], ["r"]), node("Add", ["x", "r"], ["y"])]
    constants = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "target": np.array([0, -1, 1])}
    model = assert_computes_the_same(proto_of(nodes, {"x": [2, 3, 1]}, ["y"], constants))
    assert model.weights["r"].shape == (2, 3, 1)


def test_operands_of_range_become_scalars_under_names_that_are_free():
    nodes = [
        node("Range", ["zero", "limit", "one"], ["steps"]),
        node("Cast", ["steps"], ["floats"], to=FLOAT),
        node("Shape", ["steps"], ["steps/1"]),
        node("Relu", ["x"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1)}
    proto = proto_of(
        nodes, {"x": [3], "steps/1_": [2]}, ["y"], {name: np.array(each) for name, each in constants.items()}
    )
    proto.graph.input.append(helper.make_tensor_value_info("limit", TensorProto.INT64, [1]))
    proto.graph.output.append(helper.make_tensor_value_info("floats", FLOAT, ["n"]))
    proto.graph.output.append(helper.make_tensor_value_info("steps/1", TensorProto.INT64, [1]))
    model = load_model(data(proto))
    (squeeze,) = (each for each in model.proto.graph.node if each.op_type == "Squeeze")
    assert (list(squeeze.input), list(squeeze.output)) == (["limit"], ["steps/1'"])


def test_random_and_quantising_nodes_are_not_folded():
    nodes = [
        node("RandomNormal", [], ["noise"], shape=[4], seed=1.0),
        node("DequantizeLinear", ["q", "scale"], ["w"]),
        node("Mul", ["x", "w"], ["scaled"]),
        node("Add", ["scaled", "noise"], ["y"]),
    ]
    weights = {"q": np.array([1, 2, 3, 4], np.int8), "scale": np.array(0.5, np.float32)}
    model = load_model(data(proto_of(nodes, {"x": [4]}, ["y"], weights)))
    assert [node.op_type for node in model.proto.graph.node] == ["RandomNormal", "DequantizeLinear", "Mul", "Add"]
    assert units(model) == [("RandomNormal", 1), ("Mul", 2), ("Add", 1)]


def test_a_huge_constant_is_left_for_the_runtime():
    nodes = [node("Expand", ["one", "dims"], ["huge"]), node("Add", ["x", "huge"], ["y"])]
    weights = {"one": np.ones(1, np.float32), "dims": np.array([2**20, 2**10])}
    model = load_model(data(proto_of(nodes, {"x": [1]}, ["y"], weights)))
    assert [kind for kind, _ in units(model)] == ["Expand", "Add"]


def test_copies_and_dead_nodes_vanish():
    nodes = [
        node("Identity", ["x"], ["x1"]),
        node("Relu", ["x1"], ["r"]),
        node("Dropout", ["r"], ["d", "mask"]),
        node("Sigmoid", ["d"], ["dead"]),
        node("Tanh", ["d"], ["t"]),
        node("Identity", ["t"], ["y"]),
    ]
    model = assert_computes_the_same(proto_of(nodes, {"x": [3]}, ["y"]))
    assert [operator.name for operator in model.graph.operators] == ["r", "y"]


def test_training_dropout_stays():
    nodes = [node("Dropout", ["x", "ratio", "training"], ["y0"]), node("Relu", ["y0"], ["y"])]
    weights = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    assert units(load_model(data(proto_of(nodes, {"x": [3]}, ["y"], weights)))) == [("Dropout", 1), ("Relu", 1)]


def test_outputs_that_are_inner_or_inputs_or_weights():
    nodes = [node("Relu", ["x"], ["r"]), node("Tanh", ["r"], ["t"]), node("Identity", ["x"], ["same"])]
    proto = proto_of(nodes, {"x": [3], "z": [2]}, ["r", "t", "k", "same"], {"k": weight(4)})
    model = assert_computes_the_same(proto)
    assert {operator.name for operator in model.graph.operators} == {"r", "t", "k", "same"}
    fed = proto_of([node("Relu", ["x"], ["y"])], {"x": [3], "z": [2]}, ["y", "z"])
    assert load_model(data(fed)).graph.outputs == ("y", "z")


def test_nodes_may_be_in_any_order():
    proto = small_net()
    nodes = list(reversed(proto.graph.node))
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(proto)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    assert load_model(data(shuffled)).digest == load_model(data(proto)).digest


def test_control_flow_is_one_operator_that_reads_its_captures():
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}_out", FLOAT, [3])
        return helper.make_graph([node(op, ["r", "k"], [f"{op}_out"])], op, [], [out])

    nodes = [
        node("Relu", ["x"], ["r"]),
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Cast", ["s"], ["flag"], to=TensorProto.BOOL),
        node("If", ["flag"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul")),
    ]
    model = assert_computes_the_same(proto_of(nodes, {"x": [3]}, ["y"], {"k": weight(3)}))
    operator = model.graph.by_name["y"]
    assert (operator.type, operator.inputs) == ("If", ("flag", "r"))
    assert [spec.name for spec in operator.weights] == ["k"]


def test_functions_are_inlined():
    body = [node("Relu", ["a"], ["h"]), node("Tanh", ["h"], ["b"])]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    proto = proto_of([node("Twice", ["x"], ["y"], domain="local")], {"x": [3]}, ["y"], domains=["local"])
    proto.functions.append(function)
    assert [kind for kind, _ in units(assert_computes_the_same(proto))] == ["Relu", "Tanh"]


def test_operators_of_onnxruntime_are_opaque():
    proto = proto_of(
        [node("FusedMatMul", ["x", "w"], ["m"], domain="com.microsoft", alpha=0.5), node("Relu", ["m"], ["y"])],
        {"x": [2, 3]}, ["y"], {"w": weight(3, 4)}, domains=["com.microsoft"],
    )  # fmt: skip
    model = assert_computes_the_same(proto)
    assert units(model) == [("com.microsoft::FusedMatMul", 1), ("Relu", 1)]
    assert model.graph.tensor["m"].shape is None


def test_quantised_and_half_precision_models():
    quantised = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["wq", "s", "z"], ["w"]),
        node("Conv", ["d", "w"], ["y"]),
    ]
    weights = {"s": np.array(0.02, np.float32), "z": np.array(0, np.int8)}
    weights["wq"] = np.arange(-32, 32, dtype=np.int8).reshape(4, 4, 2, 2)
    model = assert_computes_the_same(proto_of(quantised, {"x": [1, 4, 5, 5]}, ["y"], weights))
    assert units(model) == [("QuantizeLinear", 2), ("Conv", 2)]
    half = proto_of(
        [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])],
        {"x": [1, 4, 5, 5]}, ["y"], {"w": weight(4, 4, 2, 2).astype(np.float16)}, dtype=TensorProto.FLOAT16,
    )  # fmt: skip
    assert assert_computes_the_same(half).graph.tensor["y"].dtype == "float16"


def test_strings_sequences_and_missing_optional_inputs():
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["seq"]),
        node("ConcatFromSequence", ["seq"], ["both"], axis=0),
        node("Clip", ["both", "", "high"], ["y"]),
    ]
    model = assert_computes_the_same(proto_of(nodes, {"x": [3]}, ["y"], {"high": np.array(0.1, np.float32)}))
    assert model.graph.tensor["seq"].dtype == "seq(tensor(float32))"
    assert model.graph.tensor["seq"].shape is None
    text = proto_of([node("Equal", ["x", "k"], ["y"])], {"x": [2]}, ["y"], opset=19, dtype=TensorProto.STRING)
    text.graph.initializer.append(helper.make_tensor("k", TensorProto.STRING, [1], [b"a"]))
    text.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    loaded = load_model(data(text))
    assert (loaded.graph.inputs[0].dtype, loaded.graph.operators[0].weights[0].dtype) == ("string", "string")


@pytest.mark.parametrize("dims", [[2, 0], ["N", 0], ["N", "M"]], ids=str)
def test_empty_tensors_are_loaded_like_others(dims: list[int | str]):
    nodes = [node("Relu", ["x"], ["r"]), node("Concat", ["r", "x"], ["c"], axis=0), node("ReduceSum", ["c"], ["y"])]
    model = assert_computes_the_same(proto_of(nodes, {"x": dims}, ["y", "c"]), input_shapes={"x": (2, 0)})
    assert model.graph.tensor["c"].shape == (4, 0)


def test_errors_in_onnxs_own_function_bodies_do_not_blame_the_model():
    assert_computes_the_same(proto_of([node("MeanVarianceNormalization", ["x"], ["y"])], {"x": [2, 3, 4, 4]}, ["y"]))


def test_nested_concats_on_one_axis_become_one():
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("Concat", ["x", "t"], ["inner"], axis=-1),
        node("Concat", ["t", "inner"], ["middle"], axis=1),
        node("Concat", ["middle", "middle"], ["twice"], axis=1),
        node("Concat", ["twice", "twice"], ["y"], axis=0),
    ]
    model = assert_computes_the_same(proto_of(nodes, {"x": [2, 3]}, ["y"]))
    concats = [(item.name, len(item.input)) for item in model.proto.graph.node[1:]]
    assert concats == [("middle", 3), ("twice", 2), ("y", 2)]


def test_a_file_of_many_weights_is_opened_once(tmp_path: Path):
    path = tmp_path / "squeezenet.onnx"
    onnx.save(zoo.build("squeezenet"), path, save_as_external_data=True, location="weights.bin")
    model = load_model(path)
    assert sum(isinstance(array, np.memmap) for array in model.weights.values()) > 20
    opened = [entry.resolve() for entry in Path("/proc/self/fd").iterdir()]
    assert opened.count(tmp_path / "weights.bin") == 1


def test_external_weights_are_mapped_and_not_copied(tmp_path: Path):
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    model = load_model(path)
    assert model.name == "net"
    assert isinstance(model.weights["w"], np.memmap)
    assert model.digest == load_model(data(small_net())).digest
    feeds = feeds_for(model)
    np.testing.assert_array_equal(run(str(path), feeds)["y"], run(with_weights(model), feeds)["y"])


def test_the_batch_of_a_symbolic_model_is_bound_everywhere():
    nodes = [node("Add", ["a", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    model = assert_computes_the_same(proto_of(nodes, {"a": ["N", 4], "b": ["N", 4]}, ["y"]), batch_size=3)
    assert model.bindings == {"a": (3, 4), "b": (3, 4)}
    model = load_model(data(proto_of(nodes, {"a": ["N", 4], "b": ["N", 4]}, ["y"])), input_shapes={"a": (6, 4)})
    assert model.bindings["b"] == (6, 4)


def test_a_dynamic_dimension_is_bound_by_its_name_in_all_inputs():
    nodes = [node("Add", ["a", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    proto = proto_of(nodes, {"a": ["N", "seq", 4], "b": [1, "seq", 1]}, ["y"])
    model = load_model(data(proto), input_shapes={"seq": (7,)}, batch_size=2)
    assert model.bindings == {"a": (2, 7, 4), "b": (1, 7, 1)}
    assert load_model(data(proto), input_shapes={"seq": (7,), "N": (3,)}).bindings["a"] == (3, 7, 4)


def test_a_batch_is_a_dynamic_first_dimension_not_a_fixed_one():
    """A recurrent state, as of a voice detector: two layers' states first, and then the batch."""
    nodes = [node("Relu", ["x"], ["y"]), node("Relu", ["state"], ["z"])]
    proto = proto_of(nodes, {"x": ["batch", 5], "state": [2, "batch", 8]}, ["y", "z"])
    assert load_model(data(proto), batch_size=3).bindings == {"x": (3, 5), "state": (2, 3, 8)}
    given = {"x": (1, 5), "state": (2, 1, 8)}
    assert load_model(data(proto), batch_size=3, input_shapes=given).bindings == {"x": (3, 5), "state": (2, 3, 8)}


def test_dimensions_that_an_exporter_calls_a_question_mark_are_not_equal():
    """As Paddle's exporter writes images of unknown height and width."""
    proto = proto_of([node("Relu", ["x"], ["y"])], {"x": ["?", 3, "?", "?"]}, ["y"])
    model = load_model(data(proto), input_shapes={"x": (1, 3, 48, 192)})
    assert model.graph.tensor["y"].shape == (1, 3, 48, 192)
    assert load_model(data(proto), batch_size=2, input_shapes={"x": (1, 3, 8, 9)}).bindings == {"x": (2, 3, 8, 9)}


def test_a_detector_that_finds_nothing_runs_from_the_written_file():
    """As torchvision's detectors clip boxes: onnxruntime 1.32 misreads a named size where no box is found."""
    nodes = [
        node("NonZero", ["x"], ["found"]),
        node("Squeeze", ["found", "0"], ["rows"]),
        node("Gather", ["table", "rows"], ["boxes"], axis=0),
        node("Shape", ["boxes"], ["shape"]),
        node("Gather", ["shape", "first"], ["count"], axis=0),
        node("Gather", ["shape", "second"], ["sides"], axis=0),
        node("Unsqueeze", ["count", "0"], ["count_1"]),
        node("Unsqueeze", ["sides", "0"], ["sides_1"]),
        node("Concat", ["count_1", "sides_1"], ["flat"], axis=0),
        node("Unsqueeze", ["boxes", "1"], ["apart"]),
        node("Relu", ["apart"], ["clipped"]),
        node("Reshape", ["clipped", "flat"], ["y"]),
    ]
    weights = {
        "table": weight(5, 4),
        "0": np.array([0]),
        "1": np.array([1]),
        "first": np.array(0),
        "second": np.array(1),
    }
    proto = proto_of(nodes, {"x": [5]}, ["y"], weights)
    model = load_model(data(proto))
    for x in (np.zeros(5, np.float32), np.array([0, 1, 0, 1, 1], np.float32)):
        np.testing.assert_array_equal(run(with_weights(model), {"x": x})["y"], run(data(proto), {"x": x})["y"])


def test_a_fixed_batch_is_replaced_even_where_a_reshape_repeats_it():
    nodes = [
        node("Reshape", ["x", "flat"], ["f"]),
        node("Reshape", ["w0", "flat"], ["w1"]),
        node("Add", ["f", "w1"], ["y"]),
    ]
    proto = proto_of(nodes, {"x": [1, 2, 3]}, ["y"], {"flat": np.array([1, 6]), "w0": weight(2, 3)})
    model = load_model(data(proto), batch_size=4)
    feeds = feeds_for(model)
    found = run(with_weights(model), feeds)["y"]
    for index in range(4):
        expected = run(data(proto), {"x": feeds["x"][index : index + 1]})["y"][0]
        np.testing.assert_allclose(found[index], expected, rtol=1e-6)


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
@pytest.mark.parametrize("batch", [1, 4])
def test_light_models_load_at_both_batches(path: Path, batch: int):
    model = load_model(path, batch_size=batch)
    assert all(shape[0] == batch for shape in model.bindings.values())
    assert {model.graph.tensor[name].shape[0] for name in model.graph.outputs} == {batch}  # type: ignore[index]
    assert not {"Constant", "ConstantOfShape", "Unsqueeze"} & {item.op_type for item in model.proto.graph.node}


SMALL = ["squeezenet", "shufflenet", "inception_v2", "densenet121", "resnet50", "inception_v1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_light_models_compute_the_same_with_random_weights(name: str):
    """Constant weights hide every mistake, so they are replaced by random ones, before and after the import."""
    folded = load_model(LIGHT / f"light_{name}.onnx")
    random = np.random.default_rng(3)
    proto = onnx.load(LIGHT / f"light_{name}.onnx")
    drawn = {}
    for key, array in folded.weights.items():
        if array.dtype == np.float32 and array.ndim >= 2 and array.size > 64:
            scale = float(np.sqrt(2 / np.prod(array.shape[1:])))
            drawn[key] = random.standard_normal(array.shape).astype(np.float32) * scale
    kept = [item for item in proto.graph.node if not drawn.keys() & set(item.output)]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    fed = [item for item in proto.graph.initializer if item.name not in drawn]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend([*fed, *(numpy_helper.from_array(array, key) for key, array in drawn.items())])
    proto.ir_version = 8
    original = data(proto)
    one, four = load_model(original), load_model(original, batch_size=4)
    feeds = feeds_for(four)
    rebatched = run(with_weights(four), feeds)
    for index in range(2):
        image = {key: value[index : index + 1] for key, value in feeds.items()}
        expected, found = run(original, image), run(with_weights(one), image)
        for key, value in expected.items():
            assert np.isfinite(value).all()
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(rebatched[key][index], value[0], rtol=1e-3, atol=1e-5)
