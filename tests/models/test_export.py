"""An annotated model is an ordinary one: same outputs, schedule inside, written whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from iosched.models import export, zoo
from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.export import NodeNote, annotate, write_model
from iosched.models.initializers import describe_weight
from iosched.models.load import load_model
from iosched.models.merging.merge import MERGED_KEY, unmerge
from iosched.models.model import Model
from iosched.models.zoo.light import light_model

_EXPANDED = ("fire2/expand3x3", "fire2/expand1x1")


@pytest.fixture(scope="module")
def squeezenet() -> Model:
    return load_model(zoo.build("squeezenet").SerializeToString(), name="squeezenet")


def _annotated(model: Model, *merges: tuple[str, ...], order: list[str] | None = None) -> onnx.ModelProto:
    names = [operator.name for operator in model.graph.operators]
    notes = {name: NodeNote(1, index, 0, "concurrent", 12.5) for index, name in enumerate(names)}
    return annotate(
        model, order=order or names, notes=notes, merges=merges, schedule_json='{"format": 1}', version="9.9"
    )


def _run(model: bytes | Path) -> np.ndarray:
    source = str(model) if isinstance(model, Path) else model
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(source, options)
    image = session.get_inputs()[0]
    x = np.random.default_rng(3).standard_normal(image.shape, dtype=np.float32)
    return session.run(None, {image.name: x})[0]


def _metadata(proto: onnx.ModelProto | onnx.NodeProto) -> dict[str, str]:
    return {item.key: item.value for item in proto.metadata_props}


def test_annotated_model_is_valid_and_computes_the_same_bits(squeezenet: Model) -> None:
    payload = write_model(_annotated(squeezenet), squeezenet.weights, None)
    onnx.checker.check_model(payload, full_check=True)
    assert (_run(payload) == _run(squeezenet.original)).all()


def test_a_written_file_is_the_message_that_protobuf_writes(tmp_path: Path) -> None:
    """Lengths of one to five bytes, types of one to eight bytes, payloads inside and outside, arrays in any order."""
    rng = np.random.default_rng(0)
    arrays = {
        f"w{nbytes}{dtype}{order}": rng.integers(0, 9, (nbytes // dtype.itemsize // 2, 2)).astype(dtype, order)
        for nbytes in (16, 120, 128, 1024, 1040, 16_384, 2_097_152)
        for dtype in map(np.dtype, ("uint8", "float16", "float32", "int64"))
        for order in "CF"
    }
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "written",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2,))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2,))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    whole = onnx.helper.make_model(graph)
    whole.metadata_props.add(key="k", value="v" * 200)
    outside = onnx.ModelProto.FromString(whole.SerializeToString())
    del outside.graph.initializer[:]
    outside.graph.initializer.extend(describe_weight(name, array) for name, array in arrays.items())
    assert any(each.data_location == onnx.TensorProto.EXTERNAL for each in outside.graph.initializer)
    write_model(outside, arrays, tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == whole
    assert (tmp_path / "m.onnx").read_bytes() == write_model(outside, arrays, None)
    assert len(whole.SerializeToString()) == (tmp_path / "m.onnx").stat().st_size


def test_old_models_keep_their_opset_and_outputs(tmp_path: Path) -> None:
    original = light_model("squeezenet")
    model = load_model(original.SerializeToString())
    proto = _annotated(model)
    write_model(proto, model.weights, tmp_path / "m.onnx")
    assert (proto.opset_import[0].version, proto.ir_version) == (9, 10)
    np.testing.assert_array_equal(_run(tmp_path / "m.onnx"), _run(original.SerializeToString()))


def test_schedule_is_in_the_model_and_notes_on_the_nodes(squeezenet: Model) -> None:
    proto = _annotated(squeezenet)
    assert _metadata(proto) == {"io.iosched.schedule": '{"format": 1}', "io.iosched.version": "9.9"}
    for node in proto.graph.node[:2]:  # conv1: a convolution and its activation
        assert _metadata(node) == {
            "io.iosched.block": "1", "io.iosched.stage": "0", "io.iosched.group": "0",
            "io.iosched.strategy": "concurrent", "io.iosched.latency_us": "12.500",
        }  # fmt: skip
    assert all(len(_metadata(node)) == 5 for node in proto.graph.node)


def test_an_earlier_schedule_is_replaced_and_foreign_metadata_kept(squeezenet: Model) -> None:
    first = _annotated(squeezenet, _EXPANDED)
    first.metadata_props.add(key="author", value="me")
    first.graph.node[0].metadata_props.add(key="color", value="red")
    again = load_model(write_model(first, squeezenet.weights, None))
    second = _annotated(again)
    assert sorted(_metadata(second)) == ["author", "io.iosched.schedule", "io.iosched.version"]
    assert _metadata(second.graph.node[0])["color"] == "red"
    assert len(second.graph.node[0].metadata_props) == 6


def test_nodes_are_in_the_order_of_the_schedule(squeezenet: Model) -> None:
    names = [operator.name for operator in squeezenet.graph.operators]
    swapped = list(names)
    a, b = (swapped.index(name) for name in _EXPANDED)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    written = [node.output[0] for node in _annotated(squeezenet, order=swapped).graph.node]
    assert written.index(_EXPANDED[1]) < written.index(_EXPANDED[0])
    assert [name for name in written if name in set(names)] == swapped


def test_an_impossible_order_stays_topological(squeezenet: Model) -> None:
    names = [operator.name for operator in squeezenet.graph.operators]
    payload = write_model(_annotated(squeezenet, order=names[::-1]), squeezenet.weights, None)
    onnx.checker.check_model(payload)


def test_merged_operators_are_one_convolution_and_a_split(squeezenet: Model) -> None:
    proto = _annotated(squeezenet, _EXPANDED)
    payload = write_model(proto, squeezenet.weights, None)
    onnx.checker.check_model(payload, full_check=True)
    np.testing.assert_allclose(_run(payload), _run(squeezenet.original), rtol=1e-4, atol=1e-5)
    split = next(node for node in proto.graph.node if node.op_type == "Split")
    assert tuple(split.output) == _EXPANDED
    assert _metadata(split)["io.iosched.block"] == "1"
    assert MERGED_KEY in _metadata(proto)
    assert not {f"{name}/weight" for name in _EXPANDED} & {tensor.name for tensor in proto.graph.initializer}


def test_annotating_does_not_change_the_model(squeezenet: Model) -> None:
    before = squeezenet.proto.SerializeToString()
    _annotated(squeezenet, _EXPANDED)
    assert squeezenet.proto.SerializeToString() == before
    assert f"{_EXPANDED[0]}/weight" in squeezenet.weights


def test_merges_survive_a_tool_that_drops_node_metadata(squeezenet: Model) -> None:
    proto = onnx.ModelProto.FromString(write_model(_annotated(squeezenet, _EXPANDED), squeezenet.weights, None))
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.name = ""
    graph = EditableGraph.of(proto, {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer})
    unmerge(graph)
    assert {name: array.tobytes() for name, array in graph.weights.items()} == {
        name: array.tobytes() for name, array in squeezenet.weights.items()
    }


def test_a_model_and_its_annotated_form_have_one_digest(squeezenet: Model) -> None:
    loaded = load_model(write_model(_annotated(squeezenet, _EXPANDED), squeezenet.weights, None))
    assert loaded.digest == squeezenet.digest
    assert loaded.schedule_json == '{"format": 1}'


def test_large_weights_go_to_a_separate_file(
    squeezenet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_INLINE_LIMIT_NBYTES", 1_000_000)
    proto, path = _annotated(squeezenet, _EXPANDED), tmp_path / "m.onnx"
    assert write_model(proto, squeezenet.weights, path) is None
    assert path.stat().st_size < 500_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    onnx.checker.check_model(str(path))
    np.testing.assert_allclose(_run(path), _run(squeezenet.original), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="write it to a file"):
        write_model(proto, squeezenet.weights, None)


def test_files_are_readable_as_the_umask_says(
    squeezenet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_INLINE_LIMIT_NBYTES", 1_000_000)
    old = os.umask(0o027)
    try:
        write_model(_annotated(squeezenet), squeezenet.weights, tmp_path / "m.onnx")
    finally:
        os.umask(old)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o640}


class _Interrupting(dict[str, np.ndarray]):
    """Weights whose reading is interrupted at the third tensor."""

    reads = 0

    def __getitem__(self, name: str) -> np.ndarray:
        self.reads += 1
        if self.reads > self.limit:
            raise KeyboardInterrupt
        return super().__getitem__(name)

    limit = 10**9


@pytest.mark.parametrize("limit_nbytes", [1_000_000, 2_000_000_000])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    squeezenet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_nbytes: int
) -> None:
    monkeypatch.setattr(export, "_INLINE_LIMIT_NBYTES", limit_nbytes)
    (tmp_path / "m.onnx").write_text("old")
    weights: Mapping[str, np.ndarray] = _Interrupting(squeezenet.weights)
    weights.limit = sum(tensor.data_location == 1 for tensor in squeezenet.proto.graph.initializer) + 3
    with pytest.raises(KeyboardInterrupt):
        write_model(_annotated(squeezenet), weights, tmp_path / "m.onnx")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("m.onnx", "old")]


def test_missing_weights_are_named(squeezenet: Model, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"conv1/weight.*missing"):
        write_model(_annotated(squeezenet), {}, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
