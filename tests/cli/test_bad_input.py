"""Files that are not models: exit 2, at most five lines that name the cause, nothing written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from small_models import branches

COMMANDS = ("optimize", "run", "bench", "inspect")


def _bytes(change: Callable[[onnx.ModelProto], None]) -> bytes:
    proto = branches()
    change(proto)
    return proto.SerializeToString()


def _cycle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "y"


def _missing_initializer(proto: onnx.ModelProto) -> None:
    del proto.graph.initializer[:]


def _unknown_domain(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].domain = "com.example.unknown"
    proto.opset_import.append(helper.make_opsetid("com.example.unknown", 1))


def _external_data_outside(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def _unbound(proto: onnx.ModelProto) -> None:
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.ClearField("value")
        dim.dim_param = "side"


def _no_nodes(proto: onnx.ModelProto) -> None:
    del proto.graph.node[:]


BAD = {
    "empty": b"",
    "text": b"This is a letter, not a model.\n" * 10,
    "random bytes": random.Random(7).randbytes(4000),
    "truncated": branches().SerializeToString()[:-700],
    "cycle": _bytes(_cycle),
    "missing initializer": _bytes(_missing_initializer),
    "unknown domain": _bytes(_unknown_domain),
    "external data outside": _bytes(_external_data_outside),
    "unbound dimension": _bytes(_unbound),
    "no nodes": _bytes(_no_nodes),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused(invoke, complains, workdir: Path, command: str, kind: str) -> None:
    path = workdir / "bad.onnx"
    path.write_bytes(BAD[kind])
    complains(invoke(command, path), 2)
    assert list(workdir.iterdir()) == [path]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["empty", "text", "truncated"])
def test_a_bad_model_from_a_pipe_is_refused(invoke, complains, workdir: Path, command: str, kind: str) -> None:
    complains(invoke(command, "-", stdin=BAD[kind]), 2)
    assert list(workdir.iterdir()) == []


@pytest.mark.parametrize("command", [*COMMANDS, "show"])
def test_a_folder_or_a_missing_file_is_refused(invoke, complains, workdir: Path, command: str) -> None:
    (workdir / "folder").mkdir()
    complains(invoke(command, "folder"), 2, "folder")
    complains(invoke(command, "no-such-file.onnx"), 2, "no-such-file.onnx")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_network_names_the_zoo(invoke, complains, command: str) -> None:
    complains(invoke(command, "zoo:squeezenets"), 2, "squeezenet")


def test_an_unbound_dimension_names_the_option(invoke, complains, workdir: Path) -> None:
    (workdir / "bad.onnx").write_bytes(BAD["unbound dimension"])
    complains(invoke("inspect", "bad.onnx"), 2, "--input-shape")


@pytest.mark.parametrize("command", ["optimize", "run", "bench"])
def test_a_batch_size_too_large_for_memory_is_refused_but_can_be_inspected(
    invoke, complains, workdir: Path, command: str
) -> None:
    onnx.save(branches("N"), workdir / "large.onnx")
    complains(invoke(command, "large.onnx", "--batch-size", 10**9), 3, "out of memory", "--batch-size")
    assert invoke("inspect", "large.onnx", "--batch-size", 10**9).exit_code == 0


def test_a_batch_of_size_zero_is_optimized(invoke, workdir: Path) -> None:
    onnx.save(branches(batch=0), workdir / "none.onnx")
    assert invoke("optimize", "none.onnx", "--device", "v100", "-q").exit_code == 0


def test_batching_models_of_strings_is_no_internal_error(invoke, workdir: Path) -> None:
    texts = helper.make_tensor("texts", TensorProto.STRING, [2], [b"a", b"b"])
    nodes = [helper.make_node("Gather", ["texts", "at"], ["picked"]), helper.make_node("Identity", ["picked"], ["y"])]
    given = [helper.make_tensor_value_info("at", TensorProto.INT64, [3])]
    told = [helper.make_tensor_value_info("y", TensorProto.STRING, [3])]
    graph = helper.make_graph(nodes, "texts", given, told, [texts])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), workdir / "t.onnx")
    found = invoke("batch", "a=t.onnx", "b=t.onnx", "--device", "v100", "-o", "both.onnx")
    assert "internal error" not in found.stderr, found.stderr


@pytest.mark.parametrize("kind", ["empty", "text", "random bytes", "truncated"])
def test_a_file_that_is_not_a_schedule_is_refused(invoke, complains, model: Path, workdir: Path, kind: str) -> None:
    (workdir / "bad.json").write_bytes(BAD[kind])
    complains(invoke("show", "bad.json"), 2, "bad.json")
    complains(invoke("run", model, "--schedule", "bad.json"), 2, "bad.json")


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"format": "iosched.schedule", "version": 99}', '{"a": 1} x', "{" * 10_000]
)
def test_json_that_is_not_a_schedule_is_refused(invoke, complains, workdir: Path, text: str) -> None:
    (workdir / "bad.json").write_text(text)
    complains(invoke("show", "bad.json"), 2, "bad.json")


def test_a_model_without_a_schedule_has_nothing_to_show(invoke, complains, model: Path) -> None:
    complains(invoke("show", model), 2, "iosched optimize")
