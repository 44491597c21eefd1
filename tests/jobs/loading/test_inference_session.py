"""`iosched.InferenceSession` behaves like onnxruntime's session, for optimized files and all others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, InvalidProtobuf, NoSuchFile
from shipped import optimized_file
from small_models import branches, proto_of

import iosched
from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.zoo.light import light_model
from iosched.runtime.compare import compare

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)
ON_CPU = ["CPUExecutionProvider"]


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return optimized_file(tmp_path_factory.mktemp("models") / "branches.iosched.onnx", branches())


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    onnx.save(branches("batch"), tmp_path / "branches.onnx")
    return tmp_path / "branches.onnx"


@pytest.fixture(params=["optimized", "plain"])
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def described(session: Any) -> list[tuple[str, list[object], str]]:
    return [(each.name, each.shape, each.type) for each in (*session.get_inputs(), *session.get_outputs())]


def meta(session: Any) -> dict[str, object]:
    found = session.get_modelmeta()
    names = ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
    return {**{name: getattr(found, name) for name in names}, **found.custom_metadata_map}


def test_metadata_equals_that_of_onnxruntime(path: Path) -> None:
    ours, theirs = iosched.InferenceSession(path), onnxruntime.InferenceSession(path, providers=ON_CPU)
    assert described(ours) == described(theirs)
    assert meta(ours) == meta(theirs)
    assert ours.get_providers() == theirs.get_providers()
    assert ours.get_overridable_initializers() == theirs.get_overridable_initializers() == []
    assert type(ours.get_session_options()) is type(theirs.get_session_options())


def test_all_types_and_shapes_have_onnxruntimes_names(tmp_path: Path) -> None:
    kinds = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT64", "BOOL", "STRING")
    inputs = {name: (TensorProto.DataType.Value(name), (2, 3)) for name in kinds}
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds]
    nodes += [
        helper.make_node("SequenceConstruct", ["FLOAT", "FLOAT_out"], ["seq"]),
        helper.make_node("NonZero", ["BOOL"], ["dynamic"]),
        helper.make_node("ReduceSum", ["FLOAT"], ["scalar"], keepdims=0),
    ]
    outputs = {f"{name}_out": kind for name, (kind, _) in inputs.items()}
    proto = proto_of(nodes, inputs, {**outputs, "dynamic": TensorProto.INT64, "scalar": TensorProto.FLOAT})
    seq = helper.make_tensor_sequence_value_info("seq", TensorProto.FLOAT, None)
    proto.graph.output.append(seq)
    file = optimized_file(tmp_path / "kinds.onnx", proto)
    assert described(iosched.InferenceSession(file)) == described(onnxruntime.InferenceSession(file))


@pytest.mark.parametrize("name", ["light_squeezenet", pytest.param("light_shufflenet", marks=pytest.mark.slow)])
def test_light_models_compute_the_same(tmp_path: Path, name: str) -> None:
    proto = light_model(name)
    file = optimized_file(tmp_path / f"{name}.onnx", proto)
    ours, theirs = iosched.InferenceSession(file), onnxruntime.InferenceSession(proto.SerializeToString())
    assert ours.is_scheduled
    given = {each.name: np.random.default_rng(1).random(each.shape, np.float32) for each in theirs.get_inputs()}
    names = [each.name for each in theirs.get_outputs()]
    found, wanted = (dict(zip(names, each.run(None, given), strict=True)) for each in (ours, theirs))
    assert compare(found, wanted).passed


def test_outputs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Relu", ["x"], ["r"])]
    file = optimized_file(tmp_path / "m.onnx", proto_of(nodes, {"x": (2,)}, ["n", "r"]))
    session, x = iosched.InferenceSession(file), np.float32([1, -2])
    for names, wanted in ((["r", "n"], [[1, 0], [-1, 2]]), (["r"], [[1, 0]]), ([], [[-1, 2], [1, 0]])):
        assert [each.tolist() for each in session.run(names, {"x": x})] == wanted


@pytest.mark.parametrize(
    "given",
    [lambda: X, lambda: X.tolist(), lambda: onnxruntime.OrtValue.ortvalue_from_numpy(X), lambda: np.asfortranarray(X)],
)
def test_inputs_that_onnxruntime_accepts_are_accepted(path: Path, given: Callable[[], object]) -> None:
    wanted = onnxruntime.InferenceSession(path).run(None, {"x": X})
    (found,) = iosched.InferenceSession(path).run(None, {"x": given()}, onnxruntime.RunOptions())
    np.testing.assert_allclose(found, wanted[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "feed", "error"),
    [
        (None, {}, ValueError),
        (None, {"w": X}, ValueError),
        (None, {"x": X, "w": X}, InvalidArgument),
        (None, {"x": X.astype(np.float64)}, InvalidArgument),
        (None, {"x": X[0]}, InvalidArgument),
        (None, {"x": X[:, :3]}, InvalidArgument),
        (["z"], {"x": X}, InvalidArgument),
    ],
)
def test_wrong_calls_raise_the_errors_of_onnxruntime(optimized: Path, names: Any, feed: Any, error: Any) -> None:
    with pytest.raises(error):
        onnxruntime.InferenceSession(optimized).run(names, feed)
    with pytest.raises(error) as ours:
        iosched.InferenceSession(optimized).run(names, feed)
    assert isinstance(ours.value, iosched.UsageError)


@pytest.mark.parametrize(
    ("source", "error"),
    [("none.onnx", NoSuchFile), (b"no model", InvalidProtobuf), (b"", InvalidArgument), (3, TypeError)],
)
def test_invalid_models_raise_the_errors_of_onnxruntime(source: Any, error: type[Exception]) -> None:
    for kind in (onnxruntime.InferenceSession, iosched.InferenceSession):
        with pytest.raises(error):
            kind(source)


def test_a_plain_model_runs_as_onnxruntime_runs_it(plain: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = iosched.InferenceSession(str(plain), options, providers=ON_CPU)
    assert not session.is_scheduled
    assert session.get_inputs()[0].shape == ["batch", 8, 6, 6]
    for batch in (1, 3):
        x = np.repeat(X, batch, axis=0)
        (wanted,) = onnxruntime.InferenceSession(plain, options).run(None, {"x": x})
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)
    assert session.io_binding() is not None
    session.close()


@pytest.mark.parametrize(
    ("shipped", "expected"), [("iosched", True), ("sequential", True), ("reference", False), ("openvino", False)]
)
def test_is_scheduled_is_true_if_a_schedule_runs_the_model(tmp_path: Path, shipped: str, expected: bool) -> None:
    with iosched.InferenceSession(optimized_file(tmp_path / "m.onnx", branches(), shipped)) as session:
        assert session.is_scheduled is expected


def test_io_binding_and_run_async_do_not_exist_with_a_schedule(optimized: Path) -> None:
    session = iosched.InferenceSession(optimized)
    assert not hasattr(session, "io_binding")
    with pytest.raises(AttributeError, match="use run"):
        session.run_async(None, {}, None, None)


def test_eight_threads_get_their_own_answers(optimized: Path) -> None:
    theirs = onnxruntime.InferenceSession(optimized)
    wanted = [theirs.run(None, {"x": X * number})[0] for number in range(8)]
    with iosched.InferenceSession(optimized) as session, ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda number: session.run(None, {"x": X * (number % 8)})[0], range(160)))
    assert all(np.allclose(each, wanted[number % 8], rtol=1e-4, atol=1e-4) for number, each in enumerate(found))


def test_a_run_with_the_terminate_option_is_refused(optimized: Path) -> None:
    options = onnxruntime.RunOptions()
    options.terminate = True
    with pytest.raises(UsageError, match="terminate"):
        iosched.InferenceSession(optimized).run(None, {"x": X}, options)


def test_a_broken_schedule_is_an_error(optimized: Path) -> None:
    proto = onnx.load(optimized)
    next(item for item in proto.metadata_props if item.key == "io.iosched.schedule").value = "{}"
    with pytest.raises(InvalidScheduleError):
        iosched.InferenceSession(proto.SerializeToString())
