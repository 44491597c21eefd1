"""A loaded model runs by its schedule, for several threads at once, and explains why an input is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from shipped import document, optimized_file
from small_models import branches, proto_of

import iosched
from iosched.models.errors import InvalidModelError, InvalidScheduleError, UsageError
from iosched.models.load import load_model
from iosched.runtime.cpu import backend
from iosched.runtime.executor import Executor
from iosched.runtime.openvino import openvino_model as openvino_model

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return optimized_file(tmp_path / "branches.iosched.onnx", branches())


def plain(x: np.ndarray) -> np.ndarray:
    with iosched.load(branches().SerializeToString()) as model:
        return model.run({"x": x})["y"]


def test_an_optimized_file_runs_by_the_schedule_inside_it(path: Path) -> None:
    with iosched.load(path, threads=2) as model:
        np.testing.assert_allclose(model.run({"x": X})["y"], plain(X), rtol=1e-4, atol=1e-5)
        assert model.description.startswith("iosched, 2 threads")
        assert model.document is not None
        assert model.schedule is model.document.schedule
        assert [(spec.name, spec.dtype, spec.shape) for spec in model.inputs] == [("x", "float32", (1, 8, 6, 6))]
        assert [(spec.name, spec.dtype, spec.shape) for spec in model.outputs] == [("y", "float32", (1, 16, 6, 6))]
        assert "branches" in repr(model)


@pytest.mark.parametrize("form", [str, Path, lambda path: path.read_bytes()], ids=["str", "Path", "bytes"])
def test_a_model_is_a_path_or_bytes(path: Path, form: object) -> None:
    with iosched.load(form(path)) as model:  # type: ignore[operator]
        assert model.schedule is not None


def test_a_model_without_a_schedule_runs_on_plain_onnxruntime() -> None:
    with iosched.load(branches("n").SerializeToString(), batch_size=2) as model:
        assert model.description.startswith("onnxruntime")
        assert model.schedule is None
        assert not model.is_scheduled
        assert model.run({"x": np.concatenate([X, X])})["y"].shape == (2, 16, 6, 6)


def test_a_schedule_for_another_device_runs_with_one_warning(tmp_path: Path) -> None:
    def warns(call: Callable[[], object], match: str = "made for Tesla V100.*by the analytic model: it runs") -> None:
        with pytest.warns(iosched.OtherDeviceWarning, match=match) as found:
            call()
        assert [each.filename for each in found] == [__file__]

    model = load_model(branches().SerializeToString())
    result = iosched.optimize(model, device="v100")
    result.save(tmp_path / "m.onnx")
    warns(lambda: iosched.load(tmp_path / "m.onnx").run({"x": X}))
    warns(lambda: iosched.load_any(tmp_path / "m.onnx"))
    warns(lambda: iosched.InferenceSession(tmp_path / "m.onnx").run(None, {"x": X}))
    warns(lambda: [result.run({"x": X}), result.run({"x": X})])
    warns(lambda: iosched.run(model, result.document, {"x": X}, repeats=2))
    warns(lambda: iosched.bench(model, result.document, names=["iosched"], rounds=3, threads=1))
    other = replace(document(model), device={"kind": "cpu", "name": "Other CPU"})
    warns(
        lambda: iosched.load(model, schedule=other),
        "made for Other CPU, not for .*another schedule may be faster on this device",
    )


@pytest.mark.parametrize("given", [{}, {"shipped": "reference", "device": {"kind": "cpu", "name": "Other CPU"}}])
def test_a_schedule_for_this_device_or_one_that_does_not_ship_causes_no_warning(given: dict) -> None:
    model = load_model(branches().SerializeToString())
    with warnings.catch_warnings(action="error"), iosched.load(model, schedule=replace(document(model), **given)):
        pass


@pytest.mark.parametrize("without", ["iosched", "reference"])
def test_without_openvino_is_scheduled_follows_the_fallback_in_the_file(
    path: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise iosched.DeviceError("OpenVINO is not installed")

    monkeypatch.setattr(openvino_model, "OpenvinoModel", missing)
    model = load_model(path)
    with iosched.load(model, schedule=document(model, shipped="openvino", without_openvino=without)) as loaded:
        assert loaded.is_scheduled == (without == "iosched")


def test_a_schedule_is_given_as_an_object_or_a_path(tmp_path: Path) -> None:
    loaded = load_model(branches().SerializeToString())
    schedule = document(loaded, "sequential")
    (tmp_path / "s.json").write_text(schedule.to_json())
    for given in (schedule, tmp_path / "s.json", str(tmp_path / "s.json")):
        with iosched.load(loaded, schedule=given) as model:
            assert model.schedule == schedule.schedule


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"{}", "s.json"), (b"\xff\xfe", "s.json"), (b"[1", "s.json")]
)
def test_an_invalid_schedule_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(InvalidScheduleError, match=message):
        iosched.load(branches().SerializeToString(), schedule=tmp_path / "s.json")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": X, "z": X}, "no input 'z'; it has x"),
        ({"x": X.astype(np.float64)}, "float32 of shape (1, 8, 6, 6), not float64"),
        ({"x": X[:, :4]}, "not float32 of shape (1, 4, 6, 6)"),
        ({"x": [[1.0], [2.0, 3.0]]}, "lists have different lengths"),
        ({"x": ["a"]}, "not <U1"),
        ({"x": None}, "not object"),
    ],
)
@pytest.mark.parametrize("shipped", ["iosched", "reference"])
def test_a_wrong_input_is_refused_with_the_reason(
    tmp_path: Path, shipped: str, inputs: dict[str, object], message: str
) -> None:
    with iosched.load(optimized_file(tmp_path / "m.onnx", branches(), shipped)) as model:
        with pytest.raises(UsageError, match=re.escape(message)):
            model.run(inputs)
        assert model.run({"x": X})["y"].shape == (1, 16, 6, 6)


def test_lists_of_numbers_become_arrays_if_no_value_changes() -> None:
    nodes = [helper.make_node("Neg", ["i"], ["n"]), helper.make_node("Relu", ["f"], ["r"])]
    kinds = {"i": (TensorProto.INT8, (2,)), "f": (TensorProto.FLOAT, (2,))}
    proto = proto_of(nodes, kinds, {"n": TensorProto.INT8, "r": TensorProto.FLOAT})
    with iosched.load(proto.SerializeToString()) as model:
        found = model.run({"i": [1, -2], "f": [1, -2.5]})
        assert found["n"].tolist() == [-1, 2]
        assert found["r"].tolist() == [1, 0]
        for lossy in ([1, 300], [1, 0.5], [1, float("nan")]):
            with pytest.raises(UsageError, match="must be int8"):
                model.run({"i": lossy, "f": [0, 0]})


def test_string_tensors_are_accepted() -> None:
    proto = proto_of(
        [helper.make_node("Identity", ["x"], ["y"])], {"x": (TensorProto.STRING, (2,))}, {"y": TensorProto.STRING}
    )
    with iosched.load(proto.SerializeToString()) as model:
        assert model.run({"x": np.array(["a", "bc"])})["y"].tolist() == ["a", "bc"]


@pytest.mark.parametrize("shipped", ["iosched", "reference"])
@pytest.mark.parametrize("native", [True, False])
def test_eight_threads_get_their_own_answers(
    tmp_path: Path, shipped: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "available", lambda: native)
    inputs = [X + number for number in range(8)]
    right = [plain(x) for x in inputs]

    def runs(number: int) -> bool:
        found = [model.run({"x": inputs[number]})["y"] for _ in range(20)]
        return all(np.allclose(each, right[number], rtol=1e-4, atol=1e-4) for each in found)

    file = optimized_file(tmp_path / "m.onnx", branches(), shipped)
    with iosched.load(file, threads=2) as model, ThreadPoolExecutor(8) as callers:
        assert all(callers.map(runs, range(8)))


def test_running_a_closed_model_is_an_error(path: Path) -> None:
    model = iosched.load(path)
    model.close()
    model.close()
    with pytest.raises(UsageError, match="closed"):
        model.run({"x": X})


@pytest.mark.parametrize("shipped", ["iosched", "reference"])
def test_runs_in_progress_end_before_a_model_is_closed(tmp_path: Path, shipped: str) -> None:
    model = iosched.load(optimized_file(tmp_path / "m.onnx", branches(), shipped), threads=1)
    has_begun = threading.Barrier(5)

    def run_until_closed(_: int) -> str:
        has_begun.wait()
        try:
            while True:
                assert model.run({"x": X})["y"].shape == (1, 16, 6, 6)
        except UsageError as error:
            return str(error)

    with ThreadPoolExecutor(4) as callers:
        said = callers.map(run_until_closed, range(4))
        has_begun.wait()
        model.close()
        assert set(said) == {"this model is closed: load it again"}


def test_an_invalid_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="int"):
        iosched.load(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidModelError, match="does not exist"):
        iosched.load(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="load_model"):
        iosched.load(load_model(branches().SerializeToString()), batch_size=2)


def test_a_result_of_optimize_runs_and_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(branches("n"), "model.onnx")
    result = iosched.optimize("model.onnx", device="v100", batch_size=1)
    assert result.cost == "analytic"
    result.save("fast.onnx", schedule="fast.json")
    with iosched.load("fast.onnx") as model, iosched.load("model.onnx", batch_size=1, schedule="fast.json") as other:
        assert model.document == other.document
        assert model.document is not None
        assert model.document.to_json() == result.document.to_json()
        np.testing.assert_array_equal(model.run({"x": X})["y"], result.run({"x": X})["y"])
    result.close()
    np.testing.assert_allclose(result.run({"x": X})["y"], plain(X), rtol=1e-4, atol=1e-5)


def test_a_schedule_file_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.json").write_text("before")
    result = iosched.optimize(branches().SerializeToString(), device="v100")

    def full(self: Path, target: Path) -> Path:
        if target.name == "s.json":
            raise OSError(28, "No space left on device")
        return renamed(self, target)

    renamed = Path.replace
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match=r"No space left.*s\.json"):
        result.save(tmp_path / "m.onnx", schedule=tmp_path / "s.json")
    assert (tmp_path / "s.json").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "s.json"}


def test_the_executor_is_closed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Executor] = []
    close = Executor.close

    def noted(self: Executor) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Executor, "close", noted)
    with iosched.load(path, threads=1) as model:
        assert closed == []
    for _ in range(2):
        assert len(closed) == 1
        model.close()
    assert len(closed) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_child_forked_during_a_run_closes_the_model_at_once(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, threading; import iosched\n"
        "model = iosched.load(sys.argv[1], batch_size=1); begun, end = threading.Event(), threading.Event()\n"
        "class Slow:\n"
        "    def run(self, arrays): begun.set(); end.wait(60); return {}\n"
        "    def close(self): pass\n"
        "model._executor.close(); model._executor = Slow()\n"
        "runs = threading.Thread(target=model.run, args=({'x': [[0.0]]},), daemon=True); runs.start(); begun.wait(60)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(20); model.close()\n"
        "    try: model.run({'x': [[0.0]]})\n"
        "    except iosched.UsageError: os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7; end.set(); runs.join(); model.close()\n"
    )
    proto = proto_of([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 1)}, ["y"])
    onnx.save(proto, tmp_path / "m.onnx")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.onnx")], check=True, timeout=60)


def test_running_a_result_without_its_model_names_the_way_to_run_it() -> None:
    result = replace(iosched.optimize(branches().SerializeToString(), device="v100"), model=None)
    result.close()
    with pytest.raises(UsageError, match=r"schedule=result\.document"):
        result.run({"x": X})
