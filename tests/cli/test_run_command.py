"""`iosched run`: inputs in, outputs and latency out, and the check against onnxruntime."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from faulty_plans import falsify
from shipped import optimized_file
from small_models import branches

from iosched.jobs import run as run_job
from iosched.models.load import load_model
from iosched.profiler.devices.cpu import device as cpu_device
from iosched.runtime import arena
from iosched.runtime.processor import Processor, cpu_name
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument

SHAPE = (1, 8, 6, 6)


@pytest.fixture
def x(workdir: Path) -> Path:
    path = workdir / "x.npy"
    np.save(path, np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32))
    return path


@pytest.fixture
def document(model: Path) -> ScheduleDocument:
    return one_after_another(model)


def one_after_another(model: Path) -> ScheduleDocument:
    loaded = load_model(model)
    return ScheduleDocument(
        model=model.stem,
        sha256=loaded.digest,
        inputs=dict(loaded.bindings),
        dtype="float32",
        device={"kind": "cpu", "name": cpu_name()},
        schedule=sequential(loaded.graph),
    )


def save(document: ScheduleDocument, path: Path) -> Path:
    path.write_text(document.to_json())
    return path


def expected(x: Path) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(branches().SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": np.load(x)})[0])


def test_without_a_schedule_it_runs_plain_onnxruntime_and_says_so(invoke, model: Path, x: Path) -> None:
    result = invoke("run", model, "--input", f"x={x}", "--output", "y.npz", "--check")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "plain onnxruntime" in result.stderr
    np.testing.assert_array_equal(np.load("y.npz")["y"], expected(x))


def test_a_schedule_computes_the_same_outputs(invoke, model: Path, x: Path, document, workdir: Path) -> None:
    schedule = save(document, workdir / "s.json")
    result = invoke("run", model, "--schedule", schedule, "--input", f"x={x}", "--output", "y.npz", "--check")
    assert (result.exit_code, result.stdout) == (0, "")
    np.testing.assert_allclose(np.load("y.npz")["y"], expected(x), rtol=1e-5, atol=1e-6)


def test_json_has_the_keys_that_scripts_rely_on(invoke, model: Path) -> None:
    result = invoke("run", model, "--json", "--against", model, "--repeat", 4)
    found = json.loads(result.stdout)
    assert set(found) == {"latency_us", "check", "outputs", "schedule", "provenance"}
    assert set(found["latency_us"]) == {"median", "p10", "p90", "min", "samples"}
    assert len(found["latency_us"]["samples"]) == 4
    assert found["check"] == {"max_abs": 0.0, "max_rel": 0.0, "passed": True, "first_difference": None}
    assert found["outputs"] == {"y": [1, 16, 6, 6]}
    assert json.loads(invoke("run", model, "--json").stdout)["check"] is None


def test_missing_inputs_are_random_but_the_same_each_time(invoke, model: Path) -> None:
    for name in ("one.npz", "two.npz"):
        assert "random values for x" in invoke("run", model, "--output", name).stderr
    np.testing.assert_array_equal(np.load("one.npz")["y"], np.load("two.npz")["y"])


def test_quiet_leaves_stderr_empty(invoke, model: Path) -> None:
    assert invoke("run", model, "-q").stderr == ""
    assert invoke("-q", "run", model).stderr == ""


def test_a_summary_for_people(invoke, model: Path) -> None:
    text = invoke("run", model, "--against", model, "--repeat", 3).stdout
    for word in ("latency", "median of 3", "output y", "float32 1x16x6x6", "passed"):
        assert word in text


def test_outputs_go_to_stdout_as_npz(invoke, model: Path, x: Path) -> None:
    result = invoke("run", model, "--input", f"x={x}", "--output", "-")
    np.testing.assert_array_equal(np.load(io.BytesIO(result.stdout_bytes))["y"], expected(x))


def test_the_model_comes_through_a_pipe(invoke) -> None:
    result = invoke("run", "-", stdin=branches().SerializeToString())
    assert result.exit_code == 0
    assert "output y" in result.stdout


def test_a_dynamic_batch_is_bound(invoke, workdir: Path) -> None:
    onnx.save(branches(batch="n"), workdir / "dynamic.onnx")
    found = json.loads(invoke("run", "dynamic.onnx", "--batch-size", 3, "--json").stdout)
    assert found["outputs"] == {"y": [3, 16, 6, 6]}


def of_words() -> onnx.ModelProto:
    """A model that converts each word to a number, which fails for most words."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        words (string[n] word) => (float[n] y) { y = Cast<to = 1>(word) }"""
    )


def test_random_strings_are_generated_and_an_error_names_input_if_the_model_rejects_them(
    invoke, workdir: Path, complains
) -> None:
    same = """<ir_version: 8, opset_import: ["": 17]> same (string[n] word) => (string[n] y) { y = Identity(word) }"""
    onnx.save(onnx.parser.parse_model(same), workdir / "same.onnx")
    assert "passed" in invoke("run", "same.onnx", "--batch-size", 3, "--against", "same.onnx").stdout
    onnx.save(of_words(), workdir / "words.onnx")
    complains(
        invoke("run", "words.onnx", "--batch-size", 3),
        1,
        "The model may not accept random strings",
        "--input word=FILE.npy",
    )
    np.save(workdir / "word.npy", np.array(["1.5", "2", "3"]))
    assert invoke("run", "words.onnx", "--batch-size", 3, "--input", "word=word.npy").exit_code == 0


def test_plain_onnxruntime_is_not_compared_with_itself(invoke, model: Path, document, workdir: Path) -> None:
    shipped = save(replace(document, shipped="reference"), workdir / "s.json")
    for words, hint in ((("--schedule", shipped), True), ((), False)):
        result = invoke("run", model, *words, "--check", "--json")
        assert (result.exit_code, json.loads(result.stdout)["check"]) == (0, None)
        assert "Nothing to compare: plain onnxruntime runs this model." in result.stderr
        assert ("--check-schedule" in result.stderr) == hint
        assert "passed" not in invoke("run", model, *words, "--check").output
    assert invoke("run", model, "--schedule", shipped, "--against", model, "--json").stdout.count('"passed": true') == 1


@pytest.mark.parametrize("shipped", ["iosched", "reference", "openvino"])
def test_the_schedule_of_a_file_is_checked_whatever_it_ships(
    invoke, model: Path, document, workdir: Path, shipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized = optimized_file(workdir / "m.onnx", branches(), shipped)
    words = ("run", optimized, "--check-schedule", "--threads", 2, "--repeat", 3)
    result = invoke(*words, "--check")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("iosched, 2 threads")
    assert "median of 3" in result.stdout
    assert "passed" in result.stdout
    assert ("because that is what ships" in result.stderr) == (shipped != "iosched")
    assert json.loads(invoke(*words, "--against", model, "--json").stdout)["check"]["passed"]
    falsify(monkeypatch, "b")
    wrong = invoke(*words, "--json")
    assert wrong.exit_code == 4
    assert json.loads(wrong.stdout)["check"]["first_difference"]["operator"] == "b"
    assert invoke("run", optimized, "--check", "--threads", 2).exit_code == (4 if shipped == "iosched" else 0)


def test_without_a_schedule_there_is_none_to_check(invoke, complains, model: Path) -> None:
    complains(invoke("run", model, "--check-schedule"), 2, "--check-schedule", "iosched optimize")


def test_check_schedule_refuses_a_schedule_that_cannot_run(invoke, complains, workdir: Path) -> None:
    same = """<ir_version: 8, opset_import: ["": 17]> same (string[2] word) => (string[2] y) { y = Identity(word) }"""
    onnx.save(onnx.parser.parse_model(same), workdir / "same.onnx")
    schedule = save(replace(one_after_another(workdir / "same.onnx"), dtype="string"), workdir / "s.json")
    words = ("run", "same.onnx", "--schedule", schedule)
    complains(invoke(*words, "--check-schedule"), 2, "cannot be checked", "onnxruntime", "Remove --check-schedule")
    assert "Nothing to compare" in invoke(*words, "--check").stderr


def test_against_the_original_binds_it_to_the_same_shapes(invoke, model: Path, workdir: Path) -> None:
    onnx.save(branches(batch="n"), workdir / "original.onnx")
    assert invoke("run", model, "--against", "original.onnx").exit_code == 0


def test_outputs_that_differ_exit_4(invoke, model: Path, workdir: Path) -> None:
    other = branches()
    other.graph.node[3].input[:] = ["b", "c"]
    onnx.save(other, workdir / "swapped.onnx")
    result = invoke("run", model, "--against", "swapped.onnx", "--json")
    assert result.exit_code == 4
    check = json.loads(result.stdout)["check"]
    assert check["passed"] is False
    assert {key: check["first_difference"][key] for key in ("operator", "type", "cause", "unseen", "place")} == {
        "operator": "y", "type": "Concat", "cause": "model", "unseen": [], "place": None,
    }  # fmt: skip
    assert "outputs differ" in result.stderr
    assert "searching for the first operator" in result.stderr
    assert "The first operator that differs is Concat 'y'" in result.stderr


def test_the_place_of_the_first_operator_that_differs_is_reported(
    invoke, model: Path, document, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falsify(monkeypatch, "b")
    result = invoke("run", model, "--schedule", save(document, workdir / "s.json"), "--check", "--json", "--threads", 2)
    assert result.exit_code == 4
    found = json.loads(result.stdout)["check"]["first_difference"]
    assert set(found) == {
        "operator", "type", "unseen", "place", "max_abs", "max_rel", "inputs_max_rel", "reason", "cause", "vanishes",
        "complete", "looks",
    }  # fmt: skip
    assert (found["operator"], found["cause"]) == ("b", "runtime")
    assert set(found["place"]) == {"block", "stage", "group", "strategy", "as_one_with"}
    assert "doctor" in result.stderr


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((1, 8, 6, 5), np.float32), ("1x8x6x5", "1x8x6x6")),
        (np.zeros(SHAPE, np.float64), ("float64", "float32")),
        (np.array(1.0, np.float32), ("scalar", "1x8x6x6")),
    ],
    ids=["shape", "dtype", "rank"],
)
def test_a_wrong_input_names_expected_and_got(invoke, complains, model: Path, array: np.ndarray, words) -> None:
    np.save("wrong.npy", array)
    complains(invoke("run", model, "--input", "x=wrong.npy", "-q"), 2, *words)


def npy_header(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00\x76\x00" + text.ljust(118)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,), }".ljust(118),
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(118)
        + b"cos\n",
        b"\x93NUMPY\x01\x00\x76\x00" + b"__import__('os').abort()".ljust(118),
    ],
    ids=["empty", "text", "truncated", "huge", "pickle", "code"],
)
def test_a_hostile_npy_is_refused(invoke, complains, model: Path, workdir: Path, content: bytes) -> None:
    (workdir / "bad.npy").write_bytes(content)
    complains(invoke("run", model, "--input", "x=bad.npy", "-q"), 2, "bad.npy")


def test_input_names_are_checked(invoke, complains, model: Path, x: Path) -> None:
    complains(invoke("run", model, "--input", f"z={x}"), 2, "it has x")
    complains(invoke("run", model, "--input", f"x={x}", "--input", f"x={x}"), 2, "twice")
    complains(invoke("run", model, "--input", "x=missing.npy"), 2, "missing.npy")


def test_a_schedule_of_another_model_is_refused(invoke, complains, model: Path, document, workdir: Path) -> None:
    path = save(replace(document, sha256="0" * 64), workdir / "s.json")
    complains(invoke("run", model, "--schedule", path, "-q"), 2, "optimize")
    path = save(replace(document, inputs={"x": (2, 8, 6, 6)}), workdir / "s.json")
    complains(invoke("run", model, "--schedule", path, "-q"), 2, "2x8x6x6")


def test_a_schedule_of_another_device_runs_with_a_warning(invoke, model: Path, document, workdir: Path) -> None:
    path = save(replace(document, device={"kind": "cpu", "name": "Other CPU"}), workdir / "s.json")
    result = invoke("run", model, "--schedule", path, "--check")
    assert result.exit_code == 0
    assert result.stderr.count("made for Other CPU") == 1


def test_a_schedule_of_another_cpu_of_the_same_name_runs_with_a_warning(
    invoke, model: Path, document, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Processor("AMD EPYC", "AuthenticAMD", "25", "17", "1", "avx avx2", "L2 1M")
    monkeypatch.setattr(cpu_device, "read_processor", lambda: here)
    monkeypatch.setattr(cpu_device, "cpu_name", lambda: here.name)

    def said(made_for: Mapping[str, str]) -> str:
        device = {**made_for, "kind": "cpu", "name": here.name}
        result = invoke("run", model, "--schedule", save(replace(document, device=device), workdir / "s.json"))
        assert result.exit_code == 0
        return result.stderr

    other = {**here.design, "model": "1", "caches": "L2 512K", "instructions": "avx"}
    assert "another AMD EPYC (model 1, not 17; different instructions; caches L2 512K, not L2 1M)" in said(other)
    assert "made for" not in said(here.design)
    assert "made for" not in said({})


def test_outputs_are_refused_before_the_work(invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_job, "open_executor", None)
    complains(invoke("run", model, "--output", "no/such/y.npz"), 2, "no/such")
    complains(invoke("run", model, "--output", model), 2, "overwrite")
    complains(invoke("run", model, "--output", "-", "--json"), 2, "both write to stdout")
    complains(invoke("run", "-", "--schedule", "-", stdin=branches().SerializeToString()), 2, "both")
    complains(invoke("run", "-", "--against", "-", stdin=branches().SerializeToString()), 2, "both")


def test_a_gpu_without_cupy_exits_3(invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    complains(invoke("run", model, "--device", "cuda:0", "-q"), 3, "CuPy is not installed", "pip install")


@dataclass
class _Spy:
    """An executor that counts."""

    fails: bool = False
    closed: int = 0
    description: str = "spy"
    notes: tuple[str, ...] = ("Something is amiss.",)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.fails:
            raise KeyboardInterrupt
        return {"../../y": np.zeros(2, np.float32), "file": np.ones(1, np.float32)}

    def time(self, inputs: Mapping[str, np.ndarray], repeats: int) -> tuple[float, ...]:
        return (1.0,) * repeats

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_executor_is_closed_whatever_happens(invoke, model: Path, monkeypatch, fails: bool) -> None:
    spy = _Spy(fails=fails)
    monkeypatch.setattr(run_job, "open_executor", lambda *_, **__: spy)
    assert invoke("run", model, "--output", "y.npz").exit_code == (130 if fails else 0)
    assert spy.closed == 1
    assert Path("y.npz").exists() is not fails


def test_every_output_name_fits_into_npz(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_job, "open_executor", lambda *_, **__: _Spy())
    result = invoke("run", model, "--output", "y.npz")
    assert result.exit_code == 0
    assert "Something is amiss." in result.stderr
    assert set(np.load("y.npz").files) == {"../../y", "file"}


def test_a_plan_with_a_hazard_is_an_internal_error_and_does_not_run(
    invoke, workdir: Path, complains, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("x", "a", "b", "y")
    chain = [onnx.helper.make_node(kind, [names[i]], [names[i + 1]]) for i, kind in enumerate(("Exp", "Sin", "Cos"))]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    made = onnx.helper.make_graph(chain, "chain", [x], [y])
    model = Path("chain.onnx")
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model)
    schedule = save(one_after_another(model), Path("s.json"))
    monkeypatch.setattr(arena, "_smaller_or_warm", lambda accesses, nbytes: 0 * nbytes)
    told = complains(
        invoke("run", model, "--schedule", schedule, "--repeat", 1), 1, "internal error: HazardError: task"
    )
    assert "writes bytes of 'b' and 'a'" in told


def test_a_trace_of_the_run_is_written(invoke, model: Path, document: ScheduleDocument) -> None:
    plain = save(replace(document, shipped="reference"), Path("plain.json"))
    result = invoke("run", model, "--schedule", plain, "--repeat", 3, "--trace", "run.json", "--threads", 2)
    assert result.exit_code == 0, result.stderr
    assert "Without --trace, plain onnxruntime runs it" in result.stderr
    assert result.stdout.startswith("iosched, 2 threads")
    trace = json.loads(Path("run.json").read_text())
    assert "of 3" in trace["otherData"]["run"]
    tasks = [event for event in trace["traceEvents"] if event.get("cat") == "task"]
    operators = {name for event in tasks for name in event["args"]["operators"]}
    assert {"b", "c"} <= operators


def test_a_trace_may_go_to_stdout(invoke, model: Path, document: ScheduleDocument, complains) -> None:
    schedule = save(document, Path("own.json"))
    result = invoke("run", model, "--schedule", schedule, "--trace", "-")
    assert set(json.loads(result.stdout)) == {"displayTimeUnit", "otherData", "traceEvents"}
    complains(invoke("run", model, "--schedule", schedule, "--trace", "-", "--json"), 2, "--trace -", "--json")


def test_without_a_schedule_nothing_is_traced(invoke, model: Path, complains) -> None:
    complains(invoke("run", model, "--trace", "run.json"), 2, "--trace", "iosched optimize")
    assert not Path("run.json").exists()
