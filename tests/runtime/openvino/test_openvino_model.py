"""A whole model on OpenVINO computes the same as on onnxruntime, or is refused in one line."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scripted import NEEDS_OPENVINO, fire, fire_proto, model_with
from small_models import data, proto_of

from iosched.models.errors import DeviceError, ExecutionError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cores import allowed_cpus
from iosched.runtime.inputs import random_inputs
from iosched.runtime.openvino import openvino_model as openvino_model
from iosched.runtime.openvino.openvino_model import OpenvinoModel
from iosched.runtime.reference import Reference

pytestmark = NEEDS_OPENVINO


def check_numbers(model: Model, threads: int = 2) -> None:
    with OpenvinoModel(model, threads) as opened, Reference(model) as reference:
        for seed in range(2):
            inputs = random_inputs(model.graph.inputs, seed)
            assert compare(opened.run(inputs), reference.run(inputs)).passed
        assert len(opened.time(inputs, 3)) == 3
        assert compare(opened.run(inputs), reference.run(inputs)).passed


def flattened(batch: int | str) -> onnx.ModelProto:
    """A Reshape whose shape holds the batch size, and a product."""
    weight = numpy_helper.from_array(np.ones((12, 3), np.float32), "w")
    size = numpy_helper.from_array(np.array([-1 if isinstance(batch, str) else batch, 12]), "size")
    nodes = [helper.make_node("Reshape", ["x", "size"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])
    graph = helper.make_graph(nodes, "flattened", [x], [y], [weight, size])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_equal_onnxruntimes(threads: int) -> None:
    check_numbers(fire(2), threads)


@pytest.mark.parametrize("batch", ["N", 2])
def test_a_free_or_different_batch_size_is_bound(batch: int | str) -> None:
    check_numbers(load_model(flattened(batch).SerializeToString(), batch_size=5))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("is_constant", [True, False])
def test_inputs_that_are_constants_or_that_nothing_reads_are_not_needed(
    batch: int, ir_version: int, is_constant: bool
) -> None:
    """Both are in old exports: constants are listed as inputs, some of which were folded into others since."""
    proto = fire_proto()
    proto.ir_version = ir_version
    listed = (
        [(weight.name, list(weight.dims)) for weight in proto.graph.initializer] if is_constant else [("u", [1, 3])]
    )
    proto.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in listed)
    check_numbers(load_model(proto.SerializeToString(), name="fire", batch_size=batch))


def test_unused_input_is_accepted_and_not_passed() -> None:
    """OpenVINO leaves it out, both of the original file and of one bound to another batch size."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = proto_of(nodes, {"x": [1, 4], "unread": [1, 2]}, ["y"])
    for batch_size in (1, 2):
        check_numbers(load_model(data(proto), batch_size=batch_size))


def test_file_is_read_with_its_external_data(tmp_path: Path) -> None:
    path = tmp_path / "möglich.onnx"
    onnx.save_model(fire_proto(), str(path), save_as_external_data=True, location="weights", size_threshold=0)
    assert path.stat().st_size < (tmp_path / "weights").stat().st_size
    check_numbers(load_model(path))


def test_a_model_too_large_to_be_bound_to_another_batch_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise UsageError("the model has 3.0 GB of weights, too much for one ONNX stream")

    monkeypatch.setattr(openvino_model, "write_model", too_large)
    with pytest.raises(DeviceError, match="with shapes other than those of its file: the model has 3"):
        OpenvinoModel(load_model(flattened(2).SerializeToString(), batch_size=5), 1)
    check_numbers(load_model(flattened("N").SerializeToString(), batch_size=5))


@pytest.mark.parametrize(
    "dtype", ["BOOL", "INT8", "UINT8", "INT32", "INT64", "FLOAT16", "FLOAT"]
)  # fmt: skip
def test_tensors_of_common_types_are_passed_and_returned(dtype: str) -> None:
    kind = getattr(TensorProto, dtype)
    x = helper.make_tensor_value_info("x", kind, [2, 3])
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in ("y", "z")]
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]),
        helper.make_node("Concat", ["x", "x"], ["z"], axis=0),
    ]
    graph = helper.make_graph(nodes, "types", [x], outputs)
    model = load_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    inputs = random_inputs(model.graph.inputs)
    with OpenvinoModel(model, 1) as opened:
        found = opened.run(inputs)
    assert {name: array.dtype for name, array in found.items()} == dict.fromkeys(("y", "z"), inputs["x"].dtype)
    np.testing.assert_array_equal(found["y"], inputs["x"].T)


@pytest.mark.parametrize("dtype", ["DOUBLE", "UINT32", "UINT64"])
def test_types_that_openvino_computes_with_fewer_bits_are_refused(dtype: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=getattr(TensorProto, dtype)),
        helper.make_node("Add", ["wide", "wide"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.FLOAT),
    ]
    with pytest.raises(DeviceError, match=r"computes 'wide' .* with fewer bits"):
        OpenvinoModel(model_with(nodes), 1)


def test_integers_that_openvino_would_cut_off_are_refused() -> None:
    model = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.INT64)
    with OpenvinoModel(model, 1) as opened:
        assert opened.run({"x": np.full((2, 3), -(2**31))})["y"][0, 0] == -(2**31)
        for value in (2**31, -(2**31) - 1):
            with pytest.raises(UsageError, match="more than 32 bits"):
                opened.run({"x": np.full((2, 3), value)})


@pytest.mark.parametrize(
    ("kind", "attributes", "dtype", "runs"),
    [
        ("SpaceToDepth", {"blocksize": 2, "mode": "CRD"}, TensorProto.FLOAT, False),
        ("SpaceToDepth", {"blocksize": 2}, TensorProto.FLOAT, True),
        ("BitShift", {"direction": "RIGHT"}, TensorProto.INT32, False),
        ("BitShift", {"direction": "RIGHT"}, TensorProto.UINT8, True),
        ("Celu", {"alpha": 2.0}, TensorProto.FLOAT, True),
    ],
)
def test_additions_of_newer_opsets_that_openvino_ignores_are_refused(
    kind: str, attributes: dict[str, object], dtype: int, runs: bool
) -> None:
    inputs = ["x", "x"] if kind == "BitShift" else ["x"]
    node = helper.make_node(kind, inputs, ["y"], **attributes)
    model = load_model(data(proto_of([node], {"x": [1, 2, 4, 4]}, ["y"], opset=28, dtype=dtype)))
    if runs:
        check_numbers(model)
    else:
        with pytest.raises(DeviceError, match=f"{kind} 'y' as defined by newer opsets"):
            OpenvinoModel(model, 1)


def test_results_of_a_run_are_not_overwritten_by_the_next() -> None:
    model = fire()
    with OpenvinoModel(model, 1) as opened:
        inputs = random_inputs(model.graph.inputs)
        first = opened.run(inputs)
        kept = {name: array.copy() for name, array in first.items()}
        opened.run({name: array + 1 for name, array in inputs.items()})
    assert all(np.array_equal(first[name], kept[name]) for name in kept)


@pytest.mark.skipif(len(allowed_cpus()) < 2, reason="needs two processors")
def test_no_thread_is_pinned_so_that_processes_do_not_choose_the_same_core() -> None:
    model = fire()
    caller: list[int] = []
    seen: set[tuple[int, ...]] = set()
    with OpenvinoModel(model, 1) as opened:

        def run_often() -> None:
            caller.append(threading.get_native_id())
            opened.time(random_inputs(model.graph.inputs), 5000)

        thread = threading.Thread(target=run_often)
        thread.start()
        while thread.is_alive():
            with suppress(OSError, IndexError):
                seen.add(tuple(sorted(os.sched_getaffinity(caller[0]))))
        thread.join()
    assert seen == {allowed_cpus()}


def test_inputs_that_do_not_fit_are_refused_and_the_model_stays_usable() -> None:
    model = fire()
    inputs = random_inputs(model.graph.inputs)
    with OpenvinoModel(model, 1) as opened:
        with pytest.raises(UsageError, match="'x' is missing"):
            opened.run({})
        for wrong in (inputs["x"][:, :8], inputs["x"].astype(np.float64)):
            with pytest.raises(UsageError, match=r"'x' must be float32 of shape \(1, 16, 6, 6\)"):
                opened.time({"x": wrong}, 1)
        turned = np.asfortranarray(inputs["x"])
        assert compare(opened.run({"x": turned}), opened.run(inputs)).passed


def test_models_that_openvino_cannot_run_are_refused_in_a_line() -> None:
    text = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.STRING)
    with pytest.raises(DeviceError, match="does not support input 'x'"):
        OpenvinoModel(text, 1)
    unknown = model_with([helper.make_node("Bernoulli", ["x"], ["y"])])
    with pytest.raises(DeviceError, match="OpenVINO cannot run this model: ") as refused:
        OpenvinoModel(unknown, 1)
    assert "\n" not in str(refused.value)


def test_a_closed_model_and_one_of_another_process_do_not_run() -> None:
    model = fire()
    inputs = random_inputs(model.graph.inputs)
    opened = OpenvinoModel(model, 1)
    opened._request.pid = os.getpid() + 1
    with pytest.raises(ExecutionError, match="forked"):
        opened.run(inputs)
    opened._request.pid = os.getpid()
    opened.close()
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        opened.run(inputs)
