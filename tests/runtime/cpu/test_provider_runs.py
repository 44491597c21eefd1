"""Plain onnxruntime runs an exported model by its plan, or by itself with one warning that says why."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from shipped import optimized_file
from small_models import branches, data, node, proto_of, weight

import iosched
from iosched.jobs.export import export
from iosched.models.errors import InvalidModelError
from iosched.runtime.cpu import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the compiled executor is not built")

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)
CPU = "CPUExecutionProvider"
IS_OLDEST = onnxruntime.__version__.startswith("1.23.")


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    onnxruntime.register_execution_provider_library("iosched", iosched.plugin_path())
    yield
    onnxruntime.unregister_execution_provider_library("iosched")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return export(optimized_file(tmp_path / "m.iosched.onnx", branches()), tmp_path / "out", threads=2).model


def opened(source: Path | bytes, *, level: str = "ORT_ENABLE_ALL", strict: bool = False, **given: object) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", str(int(strict)))
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "iosched"]
    options.add_provider_for_devices(devices, {name: str(value) for name, value in given.items()})
    return onnxruntime.InferenceSession(source if isinstance(source, bytes) else str(source), options)


def providers(session: Any) -> set[str]:
    if IS_OLDEST:
        pytest.skip("onnxruntime 1.23 does not say who runs a graph")
    return {each.ep_name for each in session.get_provider_graph_assignment_info()}


def plain(source: Path | bytes) -> Any:
    own = source if isinstance(source, bytes) else str(source)
    return onnxruntime.InferenceSession(own, providers=[CPU])


def test_the_plan_runs_all_nodes_as_one_with_the_same_bits(path: Path) -> None:
    session = opened(path, strict=True)
    with iosched.load(path) as own:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], own.run({"x": X})["y"])
    assert providers(session) == {"iosched"}
    assert len(session.get_provider_graph_assignment_info()) == 1


def test_iosched_can_be_named_in_the_list_of_providers(path: Path) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["iosched", CPU])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], plain(path).run(None, {"x": X})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"])
def test_a_plan_runs_at_every_level_of_optimization(path: Path, level: str) -> None:
    assert providers(opened(path, level=level)) == {"iosched"}


def test_a_model_from_bytes_needs_the_path_of_its_plan(path: Path) -> None:
    assert providers(opened(path.read_bytes(), plan=path.with_suffix(".plan"))) == {"iosched"}
    assert providers(opened(path.read_bytes())) == {CPU}


def test_exported_batch_sizes_run_by_the_plan_and_others_on_plain_onnxruntime(tmp_path: Path) -> None:
    made = iosched.optimize_batches(data(branches("n")), (1, 3), device="cpu", budget=1, threads=2)
    made.save(tmp_path / "s.onnx")
    path = export(tmp_path / "s.onnx", tmp_path / "out", threads=2).model
    session = opened(path, strict=True)
    with iosched.load_any(path) as own:
        for size in (1, 3):
            x = np.repeat(X, size, axis=0)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], own.run({"x": x})["y"])
    x = np.repeat(X, 5, axis=0)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], plain(path).run(None, {"x": x})[0])
    assert providers(opened(path.read_bytes(), plan=path.with_suffix(".plan"))) == {CPU}


def test_a_model_file_that_changes_during_a_session_is_not_read_again(tmp_path: Path) -> None:
    iosched.optimize_batches(data(branches("n")), (1,), device="cpu", budget=1, threads=1).save(tmp_path / "s.onnx")
    path = export(tmp_path / "s.onnx", tmp_path / "out", threads=1).model
    session = opened(path)
    path.write_bytes(path.read_bytes() + b"")
    os.utime(path, ns=(1, 1))
    with pytest.raises(Exception, match="the model's file has changed"):
        session.run(None, {"x": np.repeat(X, 2, axis=0)})
    assert session.run(None, {"x": X})[0].shape == (1, 16, 6, 6)


def test_outputs_of_unknown_size_constants_and_forwarded_inputs(tmp_path: Path) -> None:
    proto = proto_of(
        [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["places"]), node("Identity", ["x"], ["same"]),
         node("Constant", [], ["five"], value_float=5.0), node("Add", ["five", "five"], ["ten"])],
        {"x": [2, 3], "unread": [1]},
        {"r": 1, "places": 7, "same": 1, "ten": 1},
    )  # fmt: skip
    path = export(optimized_file(tmp_path / "m.onnx", proto), tmp_path / "out", threads=1).model
    x = np.array([[0, -1, 2], [3, 0, 0]], np.float32)
    feed = {"x": x, "unread": np.zeros(1, np.float32)}
    session = opened(path)
    for found, expected in zip(session.run(None, feed), plain(path).run(None, feed), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(session.run(["places"], feed)[0], [[0, 1], [2, 0]])


def retrained(path: Path) -> None:
    proto = onnx.load(path)
    tensor = next(each for each in proto.graph.initializer if len(each.raw_data) > 100)
    tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]
    onnx.save(proto, path)


def damaged(path: Path) -> None:
    plan = path.with_suffix(".plan")
    content = bytearray(plan.read_bytes())
    content[5000] ^= 1
    plan.write_bytes(content)


def of_another_processor(path: Path) -> None:
    changed(path, b"avx2", b"avx9")


def changed(path: Path, old: bytes, new: bytes) -> None:
    """Change the head of the plan, with its checksum and the model's entry."""
    import ctypes
    import struct

    plan = path.with_suffix(".plan")
    content = bytearray(plan.read_bytes())
    offset, nbytes = struct.unpack_from("<2q", content, 24)
    head = bytes(content[offset : offset + nbytes])
    checksum = struct.unpack_from("<Q", content, 40)[0]
    head = head.replace(old, new, 1)
    made = library.compiled().iosched_checksum(head, len(head))  # type: ignore[union-attr]
    content[offset : offset + nbytes] = head
    struct.pack_into("<Q", content, 40, ctypes.c_uint64(made).value)
    plan.write_bytes(content)
    path.write_bytes(path.read_bytes().replace(f"{checksum:016x}".encode(), f"{made:016x}".encode()))


DECLINED: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed weights": (retrained, "the plan is for another graph"),
    "a missing plan": (lambda path: path.with_suffix(".plan").unlink(), "No such file"),
    "a damaged plan": (damaged, "damaged"),
    "another plan": (lambda path: path.with_suffix(".plan").write_bytes(b"text"), "is not a plan file"),
    "another onnxruntime": (
        lambda path: changed(path, onnxruntime.__version__.encode(), b"9" * len(onnxruntime.__version__)),
        "the plan is for onnxruntime 9",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_an_unsuitable_plan_falls_back_to_onnxruntime_with_one_warning(
    path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    change, reason = DECLINED[case]
    change(path)
    session = opened(path)
    assert providers(session) == {CPU}
    warnings = [line for line in capfd.readouterr().err.splitlines() if "iosched" in line]
    assert len(warnings) == 1
    assert reason in warnings[0]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], plain(path).run(None, {"x": X})[0])
    with pytest.raises(Exception, match="fallback"):
        opened(path, strict=True)


def test_a_plan_that_needs_more_threads_than_allowed_is_not_used(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert providers(opened(path, threads=1)) == {CPU}
    assert "the plan needs 2 threads, but may use 1" in capfd.readouterr().err
    assert providers(opened(path, threads=2, pin=1)) == {"iosched"}


def test_a_model_without_plan_runs_on_onnxruntime_silently(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(data(branches()))
    assert providers(opened(tmp_path / "m.onnx")) == {CPU}
    assert "iosched" not in capfd.readouterr().err


def test_an_input_with_a_default_is_declined(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    conv = proto_of(
        [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], {"x": [1, 8, 6, 6]}, ["y"], {"w": weight(8, 8, 3, 3)}
    )
    path = export(optimized_file(tmp_path / "m.onnx", conv), tmp_path / "out", threads=1).model
    proto = onnx.load(path)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [8, 8, 3, 3]))
    onnx.save(proto, path)
    session = opened(path)
    assert "input w of the model has a default value" in capfd.readouterr().err
    assert not session.run(None, {"x": X, "w": np.zeros((8, 8, 3, 3), np.float32)})[0].any()


def test_a_model_with_a_loop_runs_by_its_plan(tmp_path: Path) -> None:
    body = proto_of([node("Add", ["v", "one"], ["w"])], {"i": (7, []), "c": (9, []), "v": [4]}, {"c": 9, "w": 1}).graph
    proto = proto_of(
        [node("Loop", ["n", "go", "x"], ["y"], body=body), node("Relu", ["y"], ["z"])],
        {"x": [4]},
        ["z"],
        {"n": np.array(3, np.int64), "go": np.array(True), "one": np.ones(4, np.float32)},
    )
    source = optimized_file(tmp_path / "m.onnx", proto)
    if IS_OLDEST:
        with pytest.raises(InvalidModelError, match=r"operators with subgraphs need onnxruntime 1\.24"):
            export(source, tmp_path / "out", threads=1)
        return
    path = export(source, tmp_path / "out", threads=1).model
    session = opened(path)
    assert providers(session) == {"iosched"}
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(4, np.float32)})[0], np.full(4, 3, np.float32))


def test_threads_may_share_a_session(path: Path) -> None:
    session = opened(path)
    xs = [np.full_like(X, value) for value in range(40)]
    expected = [session.run(None, {"x": x})[0] for x in xs]
    with ThreadPoolExecutor(8) as pool:
        for found, wanted in zip(pool.map(lambda x: session.run(None, {"x": x})[0], xs), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_inputs_and_outputs_may_be_bound(path: Path) -> None:
    session = opened(path)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    y = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 16, 6, 6), np.float32))
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), session.run(None, {"x": X})[0])


def test_sessions_are_opened_and_closed_many_times(path: Path) -> None:
    other = opened(path)
    for _ in range(200):
        session = opened(path)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], other.run(None, {"x": X})[0])


def test_a_forked_child_gets_an_error(path: Path) -> None:
    session = opened(path)
    session.run(None, {"x": X})

    def child(results: Any) -> None:
        try:
            session.run(None, {"x": X})
        except Exception as error:  # noqa: BLE001 - any error is reported
            results.put(str(error))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert "before the process forked" in results.get(timeout=60)
    process.join()
    assert session.run(None, {"x": X})[0].shape == (1, 16, 6, 6)


FORKING = """
import os, sys, numpy as np, onnxruntime as ort, iosched
ort.register_execution_provider_library("iosched", iosched.plugin_path())
options = ort.SessionOptions()
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "iosched"], {})
session = ort.InferenceSession(sys.argv[1], options)
session.run(None, {"x": np.zeros((1, 8, 6, 6), np.float32)})
if child := os.fork():
    raise SystemExit(os.waitpid(child, 0)[1])
try:
    session.run(None, {"x": np.zeros((2, 8, 6, 6), np.float32)})
except Exception as error:
    print(error)
del session
"""


def test_a_forked_child_cannot_run_other_batch_sizes_and_exits(tmp_path: Path) -> None:
    iosched.optimize_batches(data(branches("n")), (1,), device="cpu", budget=1, threads=2).save(tmp_path / "s.onnx")
    path = export(tmp_path / "s.onnx", tmp_path / "out", threads=2).model
    words = [sys.executable, "-c", textwrap.dedent(FORKING), str(path)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    assert "before the process forked" in found.stdout


SCRIPT = """
import sys, numpy as np, onnxruntime as ort, iosched
ort.register_execution_provider_library("iosched", iosched.plugin_path())
options = ort.SessionOptions()
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "iosched"], {})
session = ort.InferenceSession(sys.argv[1], options)
session.run(None, {"x": np.zeros((1, 8, 6, 6), np.float32)})
if sys.argv[2] == "unregister":
    ort.unregister_execution_provider_library("iosched")
    session.run(None, {"x": np.zeros((1, 8, 6, 6), np.float32)})
print("done")
"""


@pytest.mark.parametrize("end", ["unregister", "exit"])
def test_a_process_may_end_with_a_session_open(path: Path, end: str) -> None:
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(path), end]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "done\n", "")
