"""The provider that onnxruntime loads: it digests each graph that it is shown, and leaves it to the CPU provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import data, node, proto_of, weight

from iosched.models.errors import DeviceError, InvalidModelError
from iosched.runtime.cpu import provider

ort = pytest.importorskip("onnxruntime", minversion="1.23", reason="needs pip install '.[cpu]'")
if provider.missing() is not None:
    pytest.skip(str(provider.missing()), allow_module_level=True)

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
ALL, NONE = ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
Edit = Callable[[onnx.GraphProto], None]


@pytest.fixture(scope="module")
def devices() -> Iterator[list[Any]]:
    """The provider's devices, registered as users do."""
    ort.register_execution_provider_library(provider.NAME, provider.plugin_path())
    yield [each for each in ort.get_ep_devices() if each.ep_name == provider.NAME]
    ort.unregister_execution_provider_library(provider.NAME)


def opened(model: bytes | Path, devices: list[Any], level: Any = ALL, **options: str) -> Any:
    given = ort.SessionOptions()
    given.graph_optimization_level = level
    given.log_severity_level = 4
    given.intra_op_num_threads = 1
    if devices:
        given.add_provider_for_devices(devices, options)
    return ort.InferenceSession(model if isinstance(model, bytes) else str(model), given)


@pytest.fixture
def recorded(devices: list[Any], tmp_path: Path) -> Callable[..., list[str]]:
    """Opens a model, and returns the lines that the provider records."""

    def record(model: onnx.ModelProto | bytes | Path, level: Any = ALL) -> list[str]:
        file = tmp_path / "record"
        file.unlink(missing_ok=True)
        opened(data(model) if isinstance(model, onnx.ModelProto) else model, devices, level, record=str(file))
        assert [each.name for each in tmp_path.glob("record*")] == ["record"]
        return file.read_text().splitlines()

    return record


def every_kind() -> onnx.ModelProto:
    """Attributes of all types, strings between operators, a missing input, a free dimension, and an If that captures
    a computed value, weights of the graph around it, and one of its own.
    """
    low = helper.make_graph(
        [node("Gemm", ["f", "v"], ["g"], alpha=0.5, transB=1), node("Add", ["g", "own"], ["low"])],
        "low",
        [],
        [helper.make_tensor_value_info("low", FLOAT, None)],
        [numpy_helper.from_array(weight(4), "own")],
    )
    high = helper.make_graph(
        [node("Mul", ["f", "inner"], ["high"])], "high", [], [helper.make_tensor_value_info("high", FLOAT, None)]
    )
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Clip", ["a", "", "most"], ["c"]),
        node("Selu", ["c"], ["s"], alpha=1.5),
        node("Shape", ["x"], ["dims"]),
        node("ConstantOfShape", ["dims"], ["filled"], value=helper.make_tensor("value", FLOAT, [1], [2.0])),
        node("Mul", ["s", "filled"], ["m"]),
        node("Sub", ["m", "s"], ["d"]),
        node("ReduceMean", ["d"], ["f"], axes=[2, 3], keepdims=0),
        node("If", ["is_low"], ["y"], then_branch=low, else_branch=high),
        *(
            node("LabelEncoder", [read], [written], domain="ai.onnx.ml", **{keys: a, values: b})
            for read, written, keys, a, values, b in (
                ("labels", "words", "keys_int64s", [1, 2], "values_strings", ["one", "two"]),
                ("words", "z", "keys_strings", ["one", "two"], "values_floats", [0.5, 0.25]),
            )
        ),
    ]
    weights = {"w": weight(4, 4, 3, 3), "most": np.float32(0.5), "v": weight(4, 4), "inner": weight(4, seed=1)}
    inputs = {"x": ["n", 4, 8, 8], "is_low": (BOOL, []), "labels": (INT64, [2])}
    proto = proto_of(nodes, inputs, ["y", "z"], weights)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return proto


def inputs_of_every_kind() -> dict[str, np.ndarray]:
    return {"x": weight(2, 4, 8, 8), "is_low": np.array(True), "labels": np.array([1, 2])}


def weight_bit(name: str) -> Edit:
    def flip(graph: onnx.GraphProto) -> None:
        (tensor,) = (each for each in graph.initializer if each.name == name)
        tensor.raw_data = tensor.raw_data[:-4] + bytes([tensor.raw_data[-4] ^ 1]) + tensor.raw_data[-3:]

    return flip


def attribute(index: int, name: str, value: Any) -> Edit:
    def change(graph: onnx.GraphProto) -> None:
        (place,) = (each for each in graph.node[index].attribute if each.name == name)
        place.CopyFrom(helper.make_attribute(name, value))

    return change


def in_branch(index: int, edit: Edit) -> Edit:
    return lambda graph: edit(graph.node[8].attribute[index].g)


def read(index: int, *names: str) -> Edit:
    def change(graph: onnx.GraphProto) -> None:
        graph.node[index].input[:] = names

    return change


def operator(index: int, kind: str) -> Edit:
    return lambda graph: setattr(graph.node[index], "op_type", kind)


def renamed(old: str, new: str) -> Edit:
    def change(graph: onnx.GraphProto) -> None:
        for value in (*graph.input, *graph.output):
            value.name = new if value.name == old else value.name
        for each in graph.node:
            each.input[:] = [new if name == old else name for name in each.input]
            each.output[:] = [new if name == old else name for name in each.output]

    return change


def dimension(axis: int, **given: Any) -> Edit:
    return lambda graph: (
        graph.input[0].type.tensor_type.shape.dim[axis].CopyFrom(onnx.TensorShapeProto.Dimension(**given))
    )


CHANGES: dict[str, Edit] = {
    "a bit of a weight": weight_bit("w"),
    "a bit of a weight that only a subgraph reads": weight_bit("v"),
    "a bit of a weight of a subgraph": in_branch(1, weight_bit("own")),
    "integers": attribute(0, "pads", [1, 1, 2, 0]),
    "an integer": in_branch(1, attribute(0, "transB", 0)),
    "a float": attribute(2, "alpha", 1.25),
    "a float of a subgraph": in_branch(1, attribute(0, "alpha", 0.25)),
    "a tensor": attribute(4, "value", helper.make_tensor("value", FLOAT, [1], [3.0])),
    "floats": attribute(10, "values_floats", [0.5, 0.75]),
    "strings": attribute(9, "values_strings", ["one", "tw0"]),
    "an operator": operator(2, "Elu"),
    "an operator of a subgraph": in_branch(0, operator(0, "Sub")),
    "the order of inputs": read(6, "s", "m"),
    "an edge": read(5, "c", "filled"),
    "an edge into a subgraph": in_branch(0, read(0, "f", "most")),
    "a missing input": read(1, "a", "most", "most"),
    "the name of an input": renamed("x", "image"),
    "the name of an output": renamed("z", "scores"),
    "the name of a dimension": dimension(0, dim_param="m"),
    "a dimension that is known": dimension(0, dim_value=2),
    "a shape": dimension(2, dim_value=9),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", [ALL, NONE], ids=["optimized", "as it is"])
def test_any_change_of_the_model_changes_the_digest(change: str, level: Any, recorded: Any) -> None:
    before, after = every_kind(), every_kind()
    CHANGES[change](after.graph)
    (first,), (second,) = recorded(before, level), recorded(after, level)
    assert first != second


@pytest.mark.parametrize("other", [{"dtype": TensorProto.DOUBLE}, {"opset": 13}], ids=["type", "version"])
def test_types_and_versions_change_the_digest(other: dict[str, int], recorded: Any) -> None:
    first, second = (proto_of([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"], **each) for each in ({}, other))
    assert recorded(first) != recorded(second)


def test_a_scalar_and_a_tensor_of_unknown_rank_have_different_digests(recorded: Any) -> None:
    first, second = (proto_of([node("Relu", ["x"], ["y"])], {"x": shape}, ["y"]) for shape in ([], None))
    assert recorded(first) != recorded(second)


def test_values_of_equal_nodes_are_distinguished(recorded: Any) -> None:
    nodes = [node("RandomNormal", [], [name], shape=[2]) for name in "ab"]
    same, different = (
        proto_of([*nodes, node("Add", [*names], ["y"])], {"x": [2]}, ["y", "a", "b"]) for names in ("aa", "ab")
    )
    assert recorded(same) != recorded(different)


def test_the_digest_depends_on_which_value_an_output_is(recorded: Any) -> None:
    first, second = (
        proto_of([node(kind, ["x"], [name]) for kind, name in each], {"x": [2]}, ["y", "z"])
        for each in ([("Relu", "y"), ("Neg", "z")], [("Relu", "z"), ("Neg", "y")])
    )
    assert recorded(first) != recorded(second)


def test_the_digest_does_not_depend_on_the_way_a_model_is_opened(recorded: Any, tmp_path: Path) -> None:
    proto, path, external = every_kind(), tmp_path / "whole.onnx", tmp_path / "external.onnx"
    onnx.save(proto, path)
    onnx.save(every_kind(), external, save_as_external_data=True, location="weights.bin", size_threshold=0)
    levels = ort.GraphOptimizationLevel
    found = {tuple(recorded(source)) for source in (proto, path, external)}
    found |= {tuple(recorded(path, each)) for each in (levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED)}
    ((digest,),) = found
    assert len(digest) == 16


def test_inner_names_and_the_order_of_weights_do_not_change_the_digest(recorded: Any) -> None:
    before, after = every_kind(), every_kind()
    renamed("m", "product")(after.graph)
    after.graph.node[0].name = "first"
    weights = list(after.graph.initializer)
    del after.graph.initializer[:]
    after.graph.initializer.extend(reversed(weights))
    assert recorded(before) == recorded(after)


def test_an_omitted_attribute_value_is_zero(recorded: Any) -> None:
    zero, left_out = (proto_of([node("Flatten", ["x"], ["y"], axis=0)], {"x": [2, 3]}, ["y"]) for _ in range(2))
    left_out.graph.node[0].attribute[0].ClearField("i")
    assert recorded(zero) == recorded(left_out)


@pytest.mark.parametrize("level", [ALL, NONE], ids=["optimized", "as it is"])
def test_the_cpu_provider_runs_the_graph(level: Any, devices: list[Any], tmp_path: Path) -> None:
    model, inputs = data(every_kind()), inputs_of_every_kind()
    expected = opened(model, [], level).run(None, inputs)
    for options in ({}, {"record": str(tmp_path / "record")}, {"record": str(tmp_path / "no" / "folder")}):
        session = opened(model, devices, level, **options)
        assert session.get_providers() == [provider.NAME, "CPUExecutionProvider"]
        for found, known in zip(session.run(None, inputs), expected, strict=True):
            np.testing.assert_array_equal(found, known)


def loop() -> onnx.ModelProto:
    inner = helper.make_graph(
        [node("Add", ["carried", "x"], ["next"]), node("Identity", ["go"], ["still"])],
        "body",
        [
            helper.make_tensor_value_info(*each)
            for each in (("i", INT64, []), ("go", BOOL, []), ("carried", FLOAT, [2]))
        ],
        [helper.make_tensor_value_info(*each) for each in (("still", BOOL, []), ("next", FLOAT, [2]))],
    )
    return proto_of([node("Loop", ["n", "", "x"], ["y"], body=inner)], {"x": [2], "n": (INT64, [])}, ["y"])


def test_a_loop_has_a_digest_and_runs(recorded: Any, devices: list[Any]) -> None:
    assert len(recorded(loop())) == 1
    (y,) = opened(data(loop()), devices).run(None, {"x": np.ones(2, np.float32), "n": np.array(3)})
    np.testing.assert_array_equal(y, [4, 4])


def test_each_form_of_a_model_with_functions_is_recorded(recorded: Any) -> None:
    body = [node("Mul", ["a", "a"], ["b"]), node("Add", ["b", "a"], ["c"])]
    proto = proto_of([node("Own", ["x"], ["y"], domain="own")], {"x": [2]}, ["y"], domains=["own"])
    proto.functions.append(helper.make_function("own", "Own", ["a"], ["c"], body, [helper.make_opsetid("", 17)]))
    inlined = proto_of([node("Mul", ["x", "x"], ["b"]), node("Add", ["b", "x"], ["y"])], {"x": [2]}, ["y"])
    lines = recorded(proto)
    assert len(lines) == 2
    assert lines[-1:] == recorded(inlined)


def strings() -> onnx.ModelProto:
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"one"])
    proto = proto_of([node("Equal", ["x", "words"], ["y"])], {"x": (TensorProto.STRING, [1])}, {"y": BOOL}, opset=19)
    proto.graph.initializer.append(words)
    return proto


def typed_attribute() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    nodes = [
        node("Optional", [], ["none"], type=kind.optional_type.elem_type),
        node("OptionalHasElement", ["none"], ["y"]),
    ]
    return proto_of(nodes, {"x": [2]}, {"y": BOOL})


def sequence() -> onnx.ModelProto:
    proto = proto_of([node("SequenceLength", ["x"], ["y"])], {"x": [2]}, {"y": INT64})
    proto.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2])))
    return proto


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (strings, "a constant of the graph has strings"),
        (typed_attribute, "attribute type of an operator is of a type that has no digest"),
        (sequence, "an input of the graph is not a tensor"),
    ],
)
def test_models_that_digests_do_not_cover_have_none(build: Any, reason: str, recorded: Any, tmp_path: Path) -> None:
    assert recorded(build(), NONE) == [reason]
    onnx.save(build(), tmp_path / "model.onnx")
    with pytest.raises(InvalidModelError, match=f"model.onnx has no digest: {reason}"):
        provider.graph_digests(tmp_path / "model.onnx")


def test_a_session_outlives_the_registration() -> None:
    ort.register_execution_provider_library("brief", provider.plugin_path())
    session = opened(data(loop()), [each for each in ort.get_ep_devices() if each.ep_name == provider.NAME][-1:])
    ort.unregister_execution_provider_library("brief")
    session.run(None, {"x": np.ones(2, np.float32), "n": np.array(3)})
    del session


def test_both_digests_of_a_model_are_computed_without_leaving_a_device(recorded: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto_of([node("Identity", ["x"], ["a"]), node("Relu", ["a"], ["y"])], {"x": [2]}, ["y"]), path)
    before = len(ort.get_ep_devices())
    expected = tuple(int(line, 16) for level in (ALL, NONE) for line in recorded(path, level))
    assert len(set(expected)) == 2
    assert provider.graph_digests(path) == expected
    assert len(ort.get_ep_devices()) == before


def test_a_model_that_onnxruntime_does_not_change_has_one_digest(tmp_path: Path) -> None:
    onnx.save(proto_of([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"]), tmp_path / "model.onnx")
    assert len(provider.graph_digests(tmp_path / "model.onnx")) == 1


def test_a_broken_model_has_no_digest(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidModelError, match=r"onnxruntime cannot run model\.onnx"):
        provider.graph_digests(path)


def test_the_plugin_path_is_the_absolute_path_of_a_file() -> None:
    assert Path(provider.plugin_path()).is_absolute()
    assert Path(provider.plugin_path()).is_file()


def test_errors_name_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "load_onnxruntime", lambda: SimpleNamespace(__version__="1.22.1"))
    with pytest.raises(DeviceError, match=r"onnxruntime 1\.23 or newer, not 1\.22\.1; .* pip install -U '\.\[cpu\]'"):
        provider.plugin_path()
    monkeypatch.setattr(provider, "compiled", lambda: None)
    monkeypatch.setattr(provider, "missing", lambda: "it is not built; build it")
    with pytest.raises(DeviceError, match="onnxruntime cannot load iosched: it is not built; build it"):
        provider.plugin_path()
