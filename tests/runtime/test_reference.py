"""Plain onnxruntime on the original model, bound to the scheduled shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from iosched.models.errors import DeviceError, ExecutionError, InvalidModelError, UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.reference import Reference, ReferenceSettings, candidates

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

WEIGHT = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
Dims = Sequence[int | str | None]


def proto(
    nodes: Iterable[onnx.NodeProto],
    inputs: dict[str, tuple[int, Dims]],
    outputs: dict[str, int],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def matmul(dims: Dims) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return proto([node], {"x": (TensorProto.FLOAT, dims)}, {"y": TensorProto.FLOAT}, {"w": WEIGHT})


def bound(original: onnx.ModelProto | Path, shape: tuple[int, ...]) -> Model:
    """A model as the importer leaves it: shapes bound, the payload of the weight outside the graph."""
    working = matmul(shape)
    working.graph.initializer[0].ClearField("raw_data")
    working.graph.initializer[0].data_location = TensorProto.EXTERNAL
    working.graph.initializer[0].external_data.add(key="location", value="weights")
    graph = ComputationGraph("g", (), (), (), ())
    given = original if isinstance(original, Path) else original.SerializeToString()
    return Model("g", working, {"w": WEIGHT}, graph, given, {"x": shape})


def x_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ((3, 4), (3, 4)),
        (("batch", 4), (3, 4)),
        (("batch", "channels"), (3, 4)),
        ((1, 4), (3, 4)),
        ((None, 4), (3, 4)),
        (("same", "same"), (3, 4)),
    ],
    ids=["as given", "named", "two names", "fixed batch changed", "no name", "one name, two sizes"],
)
def test_original_model_runs_in_the_bound_shape(dims: Dims, shape: tuple[int, int]) -> None:
    with Reference(bound(matmul(dims), shape)) as reference:
        assert reference._session.get_inputs()[0].shape == list(shape)
        outputs = reference.run({"x": x_of(*shape)})
    np.testing.assert_allclose(outputs["y"], x_of(*shape) @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_original_model_runs_if_names_bind_it() -> None:
    relu = proto(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": (TensorProto.FLOAT, ("n", 4))}, {"y": TensorProto.FLOAT}
    )
    with Reference(bound(relu, (2, 4))) as reference:
        assert reference.run({"x": x_of(2, 4)})["y"].shape == (2, 4)


def test_external_data_next_to_a_path_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(matmul(("n", 4)), str(path), save_as_external_data=True, location="m.data", size_threshold=0)
    for source in (path, bound(path, (2, 4))):
        with Reference(source) as reference:
            np.testing.assert_allclose(reference.run({"x": x_of(2, 4)})["y"], x_of(2, 4) @ WEIGHT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", candidates(4, 2, is_whole=True), ids=lambda settings: settings.description)
def test_every_setting_computes_the_same_and_is_timed(settings: ReferenceSettings) -> None:
    with Reference(matmul((8, 4)).SerializeToString(), settings) as reference:
        assert reference.settings == settings
        np.testing.assert_allclose(reference.run({"x": x_of(8, 4)})["y"], x_of(8, 4) @ WEIGHT, rtol=1e-5, atol=1e-5)
        latencies = reference.time({"x": x_of(8, 4)}, 5)
    assert len(latencies) == 5
    assert all(0 < latency < 60e6 for latency in latencies)


def test_candidates_cover_modes_and_thread_counts_once_each() -> None:
    assert candidates(1) == (ReferenceSettings("sequential", 1),)
    for threads in (2, 3, 8):
        tried = candidates(threads)
        assert len(set(tried)) == len(tried)
        assert ReferenceSettings("sequential", threads) == tried[0]
        assert ReferenceSettings("sequential", 1) in tried
        assert ReferenceSettings("parallel", 1, threads) in tried
    with pytest.raises(UsageError, match="at least 1"):
        candidates(0)


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_no_setting_is_tried_twice_or_takes_more_threads_than_allowed(threads: int, cores: int, is_whole: bool) -> None:
    tried = candidates(threads, cores, is_whole=is_whole)
    assert tried[0] == ReferenceSettings("sequential", threads)
    assert len({each.description for each in tried}) == len(tried) <= 8
    assert all(each.intra_threads <= threads and each.inter_threads <= max(threads, 1) for each in tried)
    own = [each.intra_threads for each in tried if each.mode == "sequential" and not each.dynamic_block_base]
    assert set(own) == {1, threads, min(threads, cores)}
    bound = [each.intra_threads for each in tried if each.binds_threads]
    assert bound == ([cores] if is_whole and 1 < cores < threads else [])
    blocks = [each.intra_threads for each in tried if each.dynamic_block_base]
    assert blocks == ([min(threads, cores)] if min(threads, cores) > 1 else [])


def test_with_a_core_for_each_thread_only_dynamic_blocks_are_tried_additionally() -> None:
    assert [each.description for each in candidates(2, 2, is_whole=True)] == [
        "sequential mode, 2 threads",
        "sequential mode, 2 threads, dynamic blocks from 4",
        "sequential mode, 1 threads",
        "parallel mode, 2 x 1 threads",
    ]


def test_sequences_text_and_types_that_numpy_cannot_name() -> None:
    sequence = proto(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["s"]), helper.make_node("Identity", ["t"], ["u"])],
        {"x": (TensorProto.FLOAT, (2,)), "t": (TensorProto.STRING, (1,))},
        {"u": TensorProto.STRING},
    )
    sequence.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    inputs = {"x": x_of(2), "t": np.array(["word"], object)}
    with Reference(sequence.SerializeToString()) as reference:
        outputs = reference.run(inputs)
        assert len(reference.time(inputs, 2)) == 2
    assert outputs["u"].tolist() == ["word"]
    assert [element.tolist() for element in outputs["s"]] == [x_of(2).tolist()] * 2

    casts = [helper.make_node("Cast", ["x"], ["f"], to=1), helper.make_node("Relu", ["f"], ["r"])]
    half = proto(
        [*casts, helper.make_node("Cast", ["r"], ["y"], to=16)], {"x": (16, (1, 3))}, {"y": 16, "r": TensorProto.FLOAT}
    )
    brain = np.array([[-1.0, 0.5, 3.0]], ml_dtypes.bfloat16)
    with Reference(half.SerializeToString()) as reference:
        outputs = reference.run({"x": brain})
        assert len(reference.time({"x": brain}, 2)) == 2
    assert outputs["y"].dtype == ml_dtypes.bfloat16
    assert outputs["y"].tolist() == outputs["r"].tolist() == [[0.0, 0.5, 3.0]]


@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [
        (TensorProto.INT4, ml_dtypes.int4, [-8, 7, 3, -1, 5]),
        (TensorProto.UINT4, ml_dtypes.uint4, [0, 15, 9]),
        (TensorProto.INT4, ml_dtypes.int4, []),
    ],
)
def test_types_packed_by_onnxruntime_are_passed_and_returned(kind: int, dtype: type, values: list[int]) -> None:
    casts = [helper.make_node("Cast", ["x"], ["f"], to=1), helper.make_node("Cast", ["f"], ["y"], to=kind)]
    model = proto(casts, {"x": (kind, (len(values),))}, {"f": TensorProto.FLOAT, "y": kind}, opset=21)
    with Reference(model.SerializeToString()) as reference:
        outputs = reference.run({"x": np.array(values, dtype)})
    assert outputs["f"].tolist() == values
    assert outputs["y"].dtype == dtype
    assert outputs["y"].astype(int).tolist() == values


def test_inputs_that_are_not_contiguous_can_be_timed() -> None:
    with Reference(matmul((3, 4)).SerializeToString()) as reference:
        assert len(reference.time({"x": x_of(6, 4)[::2]}, 2)) == 2


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (proto([helper.make_node("Nope", ["x"], ["y"])], {"x": (1, (2,))}, {"y": 1}), "No Op registered for Nope"),
        (proto([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, (2,))}, {"y": 1}, opset=99), "Opset 99"),
        (proto([helper.make_node("MatMul", ["x", "x"], ["y"])], {"x": (1, (2, 3))}, {"y": 1}), "Incompatible dim"),
    ],
)
def test_a_model_that_onnxruntime_refuses_is_an_invalid_model_in_one_line(
    broken: onnx.ModelProto, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidModelError, match=f"onnxruntime cannot run this model: .*{reason}") as error:
        Reference(broken.SerializeToString())
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    assert "ONNXRuntimeError" not in message
    assert "/onnxruntime_src" not in message
    assert capfd.readouterr() == ("", "")


def voice(dims: Dims) -> onnx.ModelProto:
    """A branch for each of two sampling rates, as of a voice detector: no length of the sound fits both."""
    branches = {
        name: helper.make_graph(
            [helper.make_node("MatMul", ["x", weights], [f"{name}_y"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
        )
        for name, weights in (("then_branch", "w3"), ("else_branch", "w5"))
    }
    return proto(
        [helper.make_node("If", ["is_short"], ["y"], **branches)],
        {"x": (TensorProto.FLOAT, dims), "is_short": (TensorProto.BOOL, ())},
        {"y": TensorProto.FLOAT},
        {f"w{rows}": np.ones((rows, 4), np.float32) for rows in (3, 5)},
    )


@pytest.mark.parametrize("opens", [Reference, build_kernel_graph])
def test_a_model_that_only_runs_with_open_dimensions_is_refused_with_the_shapes(
    opens: Callable[[Model], object],
) -> None:
    original = voice(("rows", "length")).SerializeToString()
    Reference(original).close()
    model = Model("g", voice((1, 3)), {}, ComputationGraph("g", (), (), (), ()), original, {"x": (1, 3)})
    with pytest.raises(InvalidModelError, match="onnxruntime cannot run this model") as error:
        opens(model)
    assert "bound to x=1x3: try other sizes" in str(error.value)


def test_bytes_and_files_that_are_no_model_are_invalid_models(tmp_path: Path) -> None:
    for source in (b"garbage", b"", tmp_path / "missing.onnx", tmp_path):
        with pytest.raises(InvalidModelError, match="onnxruntime cannot run this model"):
            Reference(source)


def test_wrong_inputs_are_named() -> None:
    with Reference(matmul((3, 4)).SerializeToString()) as reference:
        with pytest.raises(UsageError, match="input 'x' is missing"):
            reference.run({})
        with pytest.raises(UsageError, match="no input 'z'; it has x"):
            reference.run({"x": x_of(3, 4), "z": x_of(1)})
        with pytest.raises(ExecutionError, match="Got invalid dimensions for input: x"):
            reference.run({"x": x_of(3, 5)})
        with pytest.raises(ExecutionError, match="Unexpected input data type"):
            reference.time({"x": x_of(3, 4).astype(np.float64)}, 1)


def test_without_onnxruntime_one_line_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DeviceError, match=r"^.*: pip install '\.\[cpu\]'$"):
        Reference(matmul((3, 4)).SerializeToString())


def test_a_setting_without_threads_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        ReferenceSettings(intra_threads=0)
