"""Every invalid file ends in a short message that names the cause and a remedy."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import FLOAT, data, proto_of, weight

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.source import MAX_IR_VERSION, MAX_OPSET

node = helper.make_node
RELU = [node("Relu", ["x"], ["y"])]
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
CONV = [node("Conv", ["x", "w"], ["y"])]


def relu(shape: list[int | str | None]) -> bytes:
    return data(proto_of(RELU, {"x": shape}, ["y"]))


def refused(source: Path | bytes, *words: str, error: type[Exception] = InvalidModelError, **bindings: object) -> None:
    with pytest.raises(error) as caught:
        load_model(source, **bindings)  # type: ignore[arg-type]
    message = str(caught.value)
    assert len(message.splitlines()) <= 4, message
    for word in words:
        assert word in message, message


def test_files_that_are_no_model(tmp_path: Path):
    good = data(proto_of(CONV, {"x": [1, 3, 8, 8]}, ["y"], {"w": weight(64, 3, 3, 3)}))
    contents = {
        "empty": (b"", "empty"),
        "truncated": (good[: len(good) // 2], "truncated"),
        "random": (np.random.default_rng(5).bytes(5000), "not an ONNX model"),
        "text": (b"hello, I am no model\n" * 20, "text file"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
        "zip": (b"PK\x03\x04" + bytes(100), "torch.onnx.export"),
    }
    for name, (content, word) in contents.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        refused(path, str(path), word)
        refused(content, "the model passed as bytes", word)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_bytes_are_refused_or_loaded_but_never_crash(seed: int):
    random = np.random.default_rng(seed)
    good = bytearray(data(proto_of(CONV, {"x": [1, 3, 8, 8]}, ["y"], {"w": weight(4, 3, 3, 3)})))
    for _ in range(40):
        broken = bytearray(good)
        for position in random.integers(0, len(good), 3):
            broken[position] = random.integers(0, 256)
        try:
            load_model(bytes(broken))
        except (InvalidModelError, UsageError) as error:
            assert len(str(error).splitlines()) <= 4, error  # noqa: PT017


def test_paths_that_are_no_file(tmp_path: Path):
    refused(tmp_path, "folder")
    refused(tmp_path / "missing.onnx", "does not exist")
    refused(Path("/dev/zero"), "not a regular file")
    refused(Path("bad\0name"), "cannot be read")


def test_a_path_that_is_no_text(tmp_path: Path):
    path = tmp_path / os.fsdecode(b"\xff.onnx")
    path.write_bytes(relu([3]))
    refused(path, "is not UTF-8", "Rename the file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path):
    path = tmp_path / "secret.onnx"
    path.write_bytes(relu([3]))
    path.chmod(0)
    refused(path, "cannot be read", "ermission")


def test_broken_graphs():
    cycle = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["a"], ["y"])]
    refused(data(proto_of(cycle, {"x": [3]}, ["y"])), "cycle", "'a'")
    refused(data(proto_of(CONV, {"x": [1, 3, 8, 8]}, ["y"])), "'w'", "nor a node output")
    refused(data(proto_of([*RELU, *RELU], {"x": [3]}, ["y"])), "'y'", "twice")
    over_a_weight = [node("Relu", ["x"], ["w"]), node("Relu", ["w"], ["y"])]
    refused(data(proto_of(over_a_weight, {"x": [3]}, ["y"], {"w": weight(3)})), "'w'", "twice")
    refused(data(proto_of(RELU, {"x": [3]}, ["y", "y"])), "'y'", "twice")
    refused(data(proto_of(RELU, {"x": [3]}, ["y", "lost"])), "'lost'", "no node")
    refused(data(proto_of([], {"x": [3]}, [])), "without nodes")
    refused(data(proto_of(RELU, {"x": [3]}, [])), "no output")
    refused(data(proto_of(RELU, {"x": [3]}, ["x"])), "nothing to run")
    refused(data(proto_of([node("Relu", ["x"], ["x"])], {"x": [3]}, ["x"])), "'x'")


def test_unknown_operators():
    stranger = node("Magic", ["x"], ["y"], domain="org.strange")
    refused(data(proto_of([stranger], {"x": [3]}, ["y"], domains=["org.strange"])), "org.strange::Magic", "'y'")
    refused(data(proto_of([node("Magic", ["x"], ["y"])], {"x": [3]}, ["y"])), "Magic", "opset 17")
    refused(data(proto_of([node("Gelu", ["x"], ["y"])], {"x": [3]}, ["y"], opset=17)), "Gelu", "opset 17")
    refused(data(proto_of([node("Relu", ["x"], ["y"], slope=1)], {"x": [3]}, ["y"])), "slope")
    refused(data(proto_of([node("Conv", ["x"], ["y"])], {"x": [3]}, ["y"])), "Conv")


def test_versions_that_no_runtime_reads():
    refused(
        data(proto_of(RELU, {"x": [3]}, ["y"], ir_version=MAX_IR_VERSION + 1)),
        f"newest supported one is {MAX_IR_VERSION}",
    )
    newer = data(proto_of(RELU, {"x": [3]}, ["y"], opset=MAX_OPSET + 1))
    refused(
        newer, f"opset {MAX_OPSET + 1}", f"newest supported one is {MAX_OPSET}", f"convert_version(model, {MAX_OPSET})"
    )
    refused(data(proto_of(RELU, {"x": [3]}, ["y"], opset=-(2**40))), "opset -1099511627776")
    headless = proto_of(RELU, {"x": [3]}, ["y"])
    del headless.opset_import[:]
    refused(data(headless), "no opset")


def test_shapes_that_contradict_each_other():
    refused(data(proto_of([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"], {"w": weight(4, 5)})), "shapes")
    bad = [node("Reshape", ["x", "s"], ["y"])]
    refused(data(proto_of(bad, {"x": [2, 3]}, ["y"], {"s": np.array([7])})), "Reshape", "'y'")


def test_broken_weights():
    model = proto_of(CONV, {"x": [1, 3, 8, 8]}, ["y"], {"w": weight(4, 3, 3, 3)})
    for change in ({"raw_data": b"1234"}, {"dims": [4, 3, 3, -3]}, {"data_type": 99}, {"data_type": TensorProto.INT64}):
        broken = onnx.ModelProto()
        broken.CopyFrom(model)
        tensor = broken.graph.initializer[0]
        for field, value in change.items():
            tensor.ClearField(field)
            tensor.MergeFrom(TensorProto(**{field: value}))
        refused(data(broken), "'w'")


def external(tmp_path: Path, **fields: str) -> Path:
    model = proto_of(CONV, {"x": [1, 3, 8, 8]}, ["y"], {"w": weight(4, 3, 3, 3)})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=value)
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    (tmp_path / "outside.data").write_bytes(bytes(432))
    (folder / "good.data").write_bytes(bytes(432))
    (folder / "short.data").write_bytes(bytes(100))
    path = folder / "net.onnx"
    path.write_bytes(data(model))
    return path


def test_external_weights_stay_in_the_folder_and_are_complete(tmp_path: Path):
    assert load_model(external(tmp_path, location="good.data")).weights["w"].shape == (4, 3, 3, 3)
    for location in ("../outside.data", str(tmp_path / "outside.data"), "", "x/../../outside.data"):
        refused(external(tmp_path, location=location), "outside the model's folder")
    (tmp_path / "models/link.data").symlink_to(tmp_path / "outside.data")
    refused(external(tmp_path, location="link.data"), "outside the model's folder")
    refused(external(tmp_path, location="gone.data"), "is missing")
    refused(external(tmp_path, location="short.data"), "too short")
    refused(external(tmp_path, location="good.data", offset="4"), "too short")
    refused(external(tmp_path, location="good.data", offset="-4"), "offset")
    refused(external(tmp_path, location="good.data", length="12"), "12 bytes")
    refused(external(tmp_path, location="good.data").read_bytes(), "Pass the path of the model")


def test_dynamic_dimensions_must_be_bound():
    refused(relu(["N", 3, None]), "x=Nx3x?", "--input-shape x=1x3x1", "--batch-size")
    refused(relu(["N", 3, "H"]), "x=2x3xH", batch_size=2)
    refused(data(proto_of(RELU, {"x": None}, ["y"])), "x=?", "--input-shape x=1x3x224x224")


def test_the_hint_for_dynamic_dimensions_names_exactly_the_missing_ones():
    def hint(inputs: dict[str, list[int | str | None]], **bindings: object) -> str:
        nodes = [node("Relu", [name], [f"{name}_out"]) for name in inputs]
        proto = proto_of(nodes, inputs, [f"{name}_out" for name in inputs])
        with pytest.raises(InvalidModelError) as caught:
            load_model(data(proto), **bindings)  # type: ignore[arg-type]
        return str(caught.value).splitlines()[-1]

    tokens: dict[str, list[int | str | None]] = {"ids": ["batch", "seq"], "mask": ["batch", "seq"], "past": [2, "len"]}
    way = "Bind them with --input-shape ids=1x1 --input-shape past=2x1 (your sizes), or one symbol everywhere with "
    assert hint(tokens) == f"{way}--input-shape seq=1, or the batch with --batch-size N."
    assert hint(tokens, batch_size=1) == f"{way}--input-shape seq=1."
    assert hint(tokens, input_shapes={"len": (3,)}, batch_size=1).startswith("Bind them with --input-shape ids=1x1 (")
    image: dict[str, list[int | str | None]] = {"x": ["?", 3, "?", "?"]}
    assert hint(image, batch_size=1) == "Bind them with --input-shape x=1x3x1x1 (your sizes)."


def test_bindings_must_fit():
    def wrong(shape: list[int | str | None], *words: str, **bindings: object) -> None:
        refused(relu(shape), *words, error=UsageError, **bindings)

    wrong(["N", 3], "dimension 'xx'", "'x'", input_shapes={"xx": (1, 3)})
    wrong(["N", 3], "no input or dynamic dimension", "'x', 'N'", input_shapes={"M": (1,)})
    wrong(["N", 3], "'N' takes one size", "1x3", input_shapes={"N": (1, 3)})
    wrong(["N", 3], "'N' is bound to 2", input_shapes={"N": (2,), "x": (1, 3)})
    wrong(["N", 3], "2 dimensions", input_shapes={"x": (1, 3, 3)})
    wrong(["N", 3], "dimension 3 is fixed", input_shapes={"x": (1, 4)})
    wrong(["N", "N"], "'N' is bound to 1", input_shapes={"x": (1, 4)})
    wrong(["N", 3], "negative", input_shapes={"x": (-1, 3)})
    wrong(["N", 3], "not positive", batch_size=0)
    wrong(["N", 3], "not positive", batch_size=-2)
    two = data(proto_of([node("MatMul", ["a", "b"], ["y"])], {"a": [2, 3], "b": [3, 4]}, ["y"]))
    refused(two, "2, 3", error=UsageError, batch_size=8)
    adrift = data(proto_of([node("MatMul", ["a", "b"], ["y"])], {"a": ["N", 3], "b": ["M", 4]}, ["y"]))
    refused(
        adrift,
        "2, 3",
        "Omit --batch-size",
        error=UsageError,
        batch_size=8,
        input_shapes={"a": (2, 3), "b": (3, 4)},
    )


def test_a_node_that_fixes_the_batch_is_named():
    nodes = [node("Concat", ["x", "k"], ["c"], axis=1), node("Relu", ["c"], ["y"])]
    proto = proto_of(nodes, {"x": [1, 3]}, ["y"], {"k": weight(1, 3)})
    refused(data(proto), "fixes the batch at 1", "Concat", batch_size=4)


def test_a_function_that_calls_itself():
    body = [node("Loop", ["a"], ["b"], domain="local")]
    function = helper.make_function("local", "Loop", ["a"], ["b"], body, [helper.make_opsetid("local", 1)])
    proto = proto_of([node("Loop", ["x"], ["y"], domain="local")], {"x": [3]}, ["y"], domains=["local"])
    proto.functions.append(function)
    refused(data(proto))


def test_functions_that_expand_to_billions_of_nodes():
    functions = [helper.make_function("local", "F0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], OPSETS)]
    for level in range(1, 10):
        names = ["a", *(f"t{number}" for number in range(9)), "b"]
        calls = [node(f"F{level - 1}", [read], [made], domain="local") for read, made in pairwise(names)]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], calls, OPSETS))
    proto = proto_of([node("F9", ["x"], ["y"], domain="local")], {"x": [3]}, ["y"], domains=["local"])
    proto.functions.extend(functions)
    assert len(data(proto)) < 4000
    refused(data(proto), "functions expand to 1,000,000,000 nodes")


def test_functions_that_expand_to_more_bytes_than_protobuf_writes():
    constant = helper.make_node("Constant", [], ["k"], value_string=b"k" * 2**20)
    body = [constant, node("Neg", ["a"], ["b"])]
    calls = [node("Large", ["x"], [f"y{number}"], domain="local") for number in range(2**11)]
    proto = proto_of(calls, {"x": [3]}, ["y0"], domains=["local"])
    proto.functions.append(helper.make_function("local", "Large", ["a"], ["b"], body, OPSETS))
    refused(data(proto), "functions expand to 4,096 nodes and 2.1 GB")


@pytest.mark.parametrize("last", ["ReduceSum", "NonZero"])  # of known shape, and of one known only in a run
def test_a_vector_that_doubles_forty_times_takes_no_memory(last: str, monkeypatch: pytest.MonkeyPatch):
    infer = onnx.shape_inference.infer_shapes

    def without_values(proto: onnx.ModelProto, **how: bool) -> onnx.ModelProto:
        assert not how["data_prop"], "onnx would take 70 bytes for each element"
        return infer(proto, **how)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", without_values)
    nodes = [node("Concat", [f"c{n}", f"c{n}"], [f"c{n + 1}"], axis=0) for n in range(40)]
    proto = proto_of([*nodes, node(last, ["c40"], ["y"])], {"c0": [4]}, [])
    proto.graph.output.append(helper.make_empty_tensor_value_info("y"))
    assert load_model(data(proto)).graph.tensor["c40"].shape == (4 * 2**40,)


def test_an_input_of_more_dimensions_than_an_array_has():
    refused(relu([1] * 33), "'x' has 33 dimensions")
    assert load_model(relu([1] * 32)).graph.inputs[0].shape == (1,) * 32


def test_a_graph_input_that_is_no_tensor_needs_no_shape():
    proto = proto_of([node("ConcatFromSequence", ["s"], ["y"], axis=0)], {}, ["y"])
    proto.graph.input.append(helper.make_tensor_sequence_value_info("s", FLOAT, [2]))
    model = load_model(data(proto))
    assert model.graph.inputs[0].dtype == "seq(tensor(float32))"
    assert model.bindings == {}


def test_a_kernel_of_too_few_dimensions():
    flat = proto_of([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, ["y"], {"w": weight(4)})
    refused(data(flat), "shapes are inconsistent", "Conv")


def test_a_concat_along_an_axis_that_its_inputs_lack():
    """Where the batch is a symbol, the shape of its result is unknown, not wrong."""
    nodes = [node("Shape", ["x"], ["sizes"]), node("Concat", ["sizes", "two"], ["wanted"], axis=-2)]
    nodes.append(node("Reshape", ["x", "wanted"], ["y"]))
    proto = proto_of(nodes, {"x": ["N", 4]}, ["y"], {"two": np.array([2, 2])})
    refused(data(proto), "shapes are inconsistent", "Concat", batch_size=3)
