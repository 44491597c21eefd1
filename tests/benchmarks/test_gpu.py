"""`benchmarks/gpu.py` measures in pieces: it keeps its time limit, resumes, and survives failing cases."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from subprocess import PIPE, Popen
from types import ModuleType
from typing import Any

import desk_cudnn
import desk_cupy
import pytest

from iosched.models import zoo
from iosched.models.errors import DeviceError, DeviceLostError
from iosched.models.zoo.light import NAMES
from iosched.scheduler.precision import PRECISIONS

HERE = Path(__file__).parent
_MISSING = desk_cupy.missing()
needs_desk = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")

STAND_IN = """
import json, os, pathlib, sys, time
folder, key = sys.argv[1:3]
line = sys.stdin.readline()
ends = pathlib.Path(folder, "ends.json")
left = json.loads(ends.read_text())
end = left[key].pop(0) if left.get(key) else ""
ends.write_text(json.dumps(left))
def keep(complete, error=""):
    found = {"gpu": "GPU", "complete": complete, "seconds": {}, "printed": [key]}
    pathlib.Path(folder, "running.json").write_text(json.dumps({"key": key, "found": found, "error": error}))
if not line or end == "no GPU":
    os._exit(3)
keep(False)
if end == "abort":
    os.abort()
if end == "child":  # which holds everything open that it was given
    pathlib.Path(folder, "child").write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")))
if end in ("hang", "child"):
    time.sleep(600)
if end == "error":
    keep(False, "why")
    sys.exit(1)
keep(True)
"""
"""The process of a case, which ends as `ends.json` says by its key, attempt by attempt."""


@pytest.fixture
def gpu(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu")


@pytest.fixture
def cases(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_cases")


def test_every_piece_fits_a_call_of_ten_minutes(cases: ModuleType) -> None:
    assert list(cases.PIECES)[:4] == ["environment", "tests", "outputs", "latency-fp32"]
    for piece in cases.PIECES.values():
        assert 0 < piece.seconds <= cases.MOST_S <= 540, piece.name


def test_every_case_has_a_name_and_a_function(cases: ModuleType, script: Callable[[str], ModuleType]) -> None:
    every = [case for piece in cases.PIECES.values() for case in piece.cases]
    assert len({case.key for case in every}) == len(every)
    for case in every:
        assert cases.case_of(case.key) == case
        module, _, name = case.measure.rpartition(".")
        assert callable(getattr(script(module), name))
        assert case.network in ("", *zoo.names(), *(f"light_{name}" for name in NAMES))
        assert case.precision in ("", *PRECISIONS)
        assert all((cases.ROOT / word).exists() for word in case.words if word.endswith(".py"))


def test_every_network_and_every_test_of_a_gpu_is_in_a_piece(cases: ModuleType) -> None:
    outputs = {case.network for case in cases.PIECES["outputs"].cases}
    assert outputs == {*zoo.names(), *(f"light_{name}" for name in NAMES)}
    tests = {case.words[-1] for case in cases.PIECES["tests"].cases}
    assert tests == {f"tests/gpu/{path.name}" for path in (cases.ROOT / "tests" / "gpu").glob("test_*.py")}
    ways = {way for piece in cases.PIECES.values() for case in piece.cases for way in case.ways}
    assert ways >= {"onnxruntime-cuda", "onnxruntime-tensorrt", "torch-compile"}


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scripted:
    """Replaces the processes of cases: each takes n times its estimate, and ends as scripted.

    Attributes:
        ends: by name, the outcomes of successive turns; "" is success.
        limits_s: time limit of each turn.
    """

    clock: Clock
    results: Any
    ends: Mapping[str, Sequence[str | BaseException]] = field(default_factory=dict)
    slowness: float = 1.0
    names: list[str] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def begin(self, case: Any) -> ScriptedChild:
        self.begun.append(case.name)
        return ScriptedChild(self, case)


@dataclass
class ScriptedChild:
    of: Scripted
    case: Any

    def go(self, limit_s: float) -> str:
        of, name = self.of, self.case.name
        end = [*of.ends.get(name, ()), "", "", ""][of.names.count(name)]
        of.names.append(name)
        of.limits_s.append(limit_s)
        taken_s = self.case.seconds * of.slowness
        of.clock.now += min(taken_s, limit_s)
        if isinstance(end, BaseException):
            raise end
        end = end if taken_s <= limit_s else "ended after its time"
        found = {"gpu": "Host 1000", "complete": not end, "printed": [name], "seconds": {}}
        record = {"key": self.case.key, "found": found, "error": ""}
        (of.results.folder / "running.json").write_text(json.dumps(record))
        return end

    def stop(self) -> None:
        if self.case.name not in self.of.stopped[len(self.of.names) :]:
            self.of.stopped.append(self.case.name)


@dataclass
class Bench:
    """Calls of the driver on one folder."""

    gpu: ModuleType
    cases: ModuleType
    folder: Path

    def call(self, piece: str = "latency-fp32", seconds: float = 1000.0, **scripted: Any) -> Scripted:
        clock, results = Clock(), self.gpu.Results.of(self.folder)
        children = Scripted(clock, results, **scripted)
        self.gpu.measure(self.cases.PIECES[piece].cases, results, children.begin, seconds, clock)
        assert clock.now <= 1000.0 + seconds
        assert set(children.stopped) == set(children.begun), "a process was left behind"
        return children

    def states(self) -> dict[str, str]:
        entries = json.loads((self.folder / "results.json").read_text())["cases"]
        return {key.partition("/")[2]: entry["state"] for key, entry in entries.items()}


@pytest.fixture
def bench(gpu: ModuleType, cases: ModuleType, tmp_path: Path) -> Bench:
    return Bench(gpu, cases, tmp_path)


ONE, TWO, THREE, FOUR = (f"{network} b1 fp32" for network in ("squeezenet", "inception_v3", "randwire", "nasnet_a"))


def test_a_call_measures_the_cases_that_fit_and_the_next_one_the_rest(bench: Bench) -> None:
    two_s = sum(case.seconds for case in bench.cases.PIECES["latency-fp32"].cases[:2])
    assert bench.call(seconds=two_s + 1.0).names == [ONE, TWO]
    assert bench.call().names == [THREE, FOUR]
    assert set(bench.states().values()) == {"done"}
    assert bench.call().names == []


def test_a_case_too_long_for_the_remaining_time_does_not_block_shorter_ones(bench: Bench) -> None:
    assert bench.call(seconds=131.0 + 41.0, ends={}).names == [ONE, TWO]
    assert bench.call(seconds=85.0).names == [THREE]


def test_the_next_case_is_prepared_while_one_has_the_gpu(bench: Bench) -> None:
    assert bench.call().begun == [ONE, TWO, THREE, FOUR]


@pytest.mark.parametrize("slowness", [0.3, 1.0, 1.9, 9.0])
def test_the_time_limit_is_kept(bench: Bench, slowness: float) -> None:
    """`call` checks the total."""
    found = bench.call(seconds=500.0, slowness=slowness)
    by_name = {case.name: case for case in bench.cases.PIECES["latency-fp32"].cases}
    for name, limit_s in zip(found.names, found.limits_s, strict=True):
        assert limit_s <= min(2 * by_name[name].seconds + 60.0, 540.0)
    assert found.names[:2] == [ONE, TWO]


def test_a_failed_case_is_retried_after_the_others_at_most_twice(bench: Bench) -> None:
    found = bench.call(ends={TWO: ["gone"] * 9}, slowness=0.1)
    assert found.names == [ONE, TWO, THREE, FOUR, TWO, TWO]
    assert bench.states()[TWO] == "partial"
    assert bench.call().names == []


def test_partial_results_survive_the_loss_of_the_machine(bench: Bench) -> None:
    """The machine was lost in the middle of a case."""
    (case, *_) = bench.cases.PIECES["latency-fp32"].cases
    bench.gpu.Results.of(bench.folder).begin(case)
    found = {"gpu": "Host 1000", "complete": False, "median_us": {"sequential": 1.0}, "seconds": {}}
    (bench.folder / "running.json").write_text(json.dumps({"key": case.key, "found": found, "error": ""}))
    again = bench.gpu.Results.of(bench.folder)
    assert again.cases[case.key]["found"] == found
    assert again.gpu == "Host 1000"
    assert bench.call().names == [TWO, THREE, FOUR, ONE]


def test_finished_cases_survive_an_interruption(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.call(ends={TWO: [KeyboardInterrupt()]})
    assert bench.states() == {ONE: "done", TWO: "failed"}
    assert bench.call().names == [THREE, FOUR, TWO]


def test_a_worse_attempt_keeps_earlier_results(bench: Bench) -> None:
    bench.call()
    results = bench.gpu.Results.of(bench.folder)
    case = bench.cases.PIECES["latency-fp32"].cases[0]
    before = results.cases[case.key]["found"]
    results.begin(case)
    record = {"key": case.key, "found": {"complete": False, "gpu": "Host 1000"}, "error": "gone"}
    (bench.folder / "running.json").write_text(json.dumps(record))
    results.end(case, "")
    assert results.cases[case.key]["found"] == before
    assert results.cases[case.key]["reasons"] == ["gone"]


def test_without_a_gpu_no_attempt_is_recorded(bench: Bench) -> None:
    with pytest.raises(bench.gpu.NoGpuError):
        bench.call(ends={ONE: [bench.gpu.NoGpuError()]})
    assert bench.states() == {}


def test_a_foreign_file_is_not_overwritten(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text('{"format": "iosched.schedule", "version": 1}')
    with pytest.raises(SystemExit) as error:
        gpu.main(["--evidence", "--output", str(tmp_path)])
    assert error.value.code == 2
    assert "has no results of gpu.py: give another --output" in capsys.readouterr().err


@dataclass
class Processes:
    """Calls of the whole script, with real processes that use no GPU."""

    gpu: ModuleType
    folder: Path

    def call(self, *words: str, **ends: Sequence[str]) -> int:
        (self.folder / "ends.json").write_text(json.dumps({f"stages/{key}": end for key, end in ends.items()}))
        command = [sys.executable, "-c", STAND_IN, str(self.folder)]
        code: int = self.gpu.main([*words, "--output", str(self.folder)], command)
        return code

    def reasons(self) -> dict[str, list[str]]:
        entries = json.loads((self.folder / "results.json").read_text())["cases"]
        return {key.partition("/")[2]: entry["reasons"] for key, entry in entries.items() if entry["reasons"]}


@pytest.fixture
def processes(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(gpu, "START_S", 3.0)
    monkeypatch.setattr(gpu, "MOST_TIMES", 0.0)
    return Processes(gpu, tmp_path)


def test_a_failing_process_costs_one_turn(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"squeezenet fp32": ["abort"], "randwire fp32": ["error"], "nasnet_a fp16": ["child"]}
    assert processes.call("--piece", "stages", **ends) == 0
    assert processes.reasons() == {
        "squeezenet fp32": ["its process was ended by SIGABRT"],
        "randwire fp32": ["why"],
        "nasnet_a fp16": ["ended after 3 s"],
    }
    child = int((processes.folder / "child").read_text())
    assert _is_gone(child), "a child process outlived its case"
    assert processes.call("--list") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stages")]
    assert "8/8" in line
    assert (processes.folder / "report.md").read_text().startswith("# Measured on GPU")


def _is_gone(process: int) -> bool:
    for _ in range(50):
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":  # no parent waits for it
            return True
        time.sleep(0.1)
    return False


def test_a_machine_without_a_gpu_ends_the_call(processes: Processes) -> None:
    assert processes.call("--piece", "stages", **{"squeezenet fp32": ["no GPU"]}) == 3
    assert json.loads((processes.folder / "results.json").read_text())["cases"] == {}


def test_items_that_failed_in_one_attempt_come_last_in_the_next(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = script("gpu_case")
    monkeypatch.setattr(case.Session, "keep", lambda self, **kept: reports.append(kept))
    reports: list[dict[str, Any]] = []
    session = case.Session(None, None, {})
    tried: list[str] = []
    troubles: dict[str, BaseException] = {"b": DeviceError("no engine"), "c": KeyboardInterrupt()}

    def measure(key: str) -> dict[str, Any]:
        tried.append(key)
        if trouble := troubles.pop(key, None):
            raise trouble
        return {"us": 1.0}

    with pytest.raises(KeyboardInterrupt):  # simulates the end of the process
        session.each("rows", "abcde", measure)
    assert session.found["rows"]["c"] == {"failed": "did not come back"}
    troubles["b"] = DeviceLostError("gone")
    with pytest.raises(DeviceLostError):
        session.each("rows", "abcde", measure)
    troubles["c"] = MemoryError()
    with pytest.raises(SystemExit):
        session.each("rows", "abcde", measure)
    assert reports[-1] == {"error": "1 of 5 failed, first c: MemoryError"}
    session.each("rows", "abcde", measure)
    assert tried == [*"abc", *"deb", *"bc", "c"]
    assert reports[-1] == {"complete": True}
    assert session.found["rows"] == {key: {"us": 1.0} for key in "abcde"}


def test_a_case_ends_with_its_parent_process(script: Callable[[str], ModuleType]) -> None:
    """After the script is killed, its machine is free at once."""
    waits = "from gpu_case import Session; Session(None, None, {}).wait(); print('on', flush=True); time.sleep(600)"
    code = f"import sys, time; sys.path.insert(0, {str(HERE.parents[1] / 'benchmarks')!r}); {waits}"
    for line in (b"", b"1e9\n"):
        process = Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, process_group=0)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        if line:
            assert process.stdout.readline() == b"on\n"
        process.stdin.close()
        assert process.wait(60) == (-SIGKILL if line else 1)
        process.stdout.close()


FAULTS = {
    "library": ("resnet50 b1 fp32", "ExecutionError: GPU error: CUDNN_STATUS_EXECUTION_FAILED (1)"),
    "plan": ("densenet121 b1 fp32", "DeviceError: cuDNN has no engine"),
    "memory": ("vgg16 b1 fp32", "DeviceError: out of GPU memory"),
    "hang": ("googlenet b1 fp16", "ended after 40 s"),
    "lost": ("resnet50 b1 fp16", "DeviceLostError: the GPU stopped working"),
    "abort": ("densenet121 b1 fp16", "its process was ended by SIGABRT"),
}


@dataclass
class OnDesk:
    """Calls of the whole script on the CUDA made of host memory; see desk_gpu_case.py."""

    gpu: ModuleType
    folder: Path

    def call(self, *words: str) -> int:
        command = [sys.executable, str(HERE / "desk_gpu_case.py"), str(self.folder)]
        code: int = self.gpu.main([*words, "--output", str(self.folder)], command)
        return code

    def entries(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "results.json").read_text())["cases"]
        return {key.partition("/")[2]: entry for key, entry in found.items()}


@pytest.fixture
def on_desk(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnDesk:
    monkeypatch.setattr(gpu, "START_S", 40.0)
    monkeypatch.setattr(gpu, "MOST_TIMES", 0.0)
    if "cudnn" in sys.modules and (reason := desk_cudnn.missing()):
        pytest.skip(reason)
    return OnDesk(gpu, tmp_path)


@pytest.mark.slow
@needs_desk
def test_every_fault_costs_one_turn_of_one_case(on_desk: OnDesk) -> None:
    for fault, (name, _) in FAULTS.items():
        (on_desk.folder / fault).write_text(f"controls/{name}")
    assert on_desk.call("--piece", "controls") == 0
    entries = on_desk.entries()
    assert len(entries) == 8
    for name, reason in FAULTS.values():
        assert [reason] == [each[: len(reason)] for each in entries[name]["reasons"]]
    ours = {"sequential", "greedy", "paper", "found", "found, no barriers", "found, by demand"}
    for entry in entries.values():
        found = entry["found"]
        assert entry["state"] == "done"
        assert found["correct"]
        assert set(found["median_us"]) == set(found["kernels"]) == set(found["nodes"]) == set(found["plans"]) == ours
        assert found["plans"]["found"]
        assert {"torch", "torch-cudagraph", "onnxruntime-cuda"} - set(found["median_us"]) == set(found["missing"])
    page = (on_desk.folder / "report.md").read_text()
    assert "## Fastest schedule" in page
    assert "## Not done" not in page


@pytest.mark.slow
@needs_desk
@pytest.mark.parametrize("fault", ["kernel", "lost"])
def test_kernels_measured_before_a_fault_are_kept(on_desk: OnDesk, fault: str) -> None:
    (on_desk.folder / fault).write_text("refit/kernels fp32 2")
    assert on_desk.call("--piece", "refit") == 0
    entries = on_desk.entries()
    assert {name: len(entry["reasons"]) for name, entry in entries.items() if entry["reasons"]} == {
        "kernels fp32 2": 1,
        "fit": 1,
    }
    assert entries["fit"]["reasons"] == ["fitted without all of refit/kernels fp32 2"]
    assert all(entry["state"] == "done" for entry in entries.values())
    fit = entries["fit"]["found"]
    assert fit["fit"] + fit["held_out"] == 2 * 19
    assert set(fit["mean_error"]["all"]) == {"kernels", "before", "after"}


@pytest.mark.slow
@needs_desk
def test_environment_outputs_and_stages_are_measured(on_desk: OnDesk) -> None:
    (on_desk.folder / "lost").write_text("outputs/squeezenet")
    assert on_desk.call("--piece", "environment", "--piece", "stages") == 0
    assert "works in" in on_desk.entries()["self-test"]["found"]["self-test"]
    stages = on_desk.entries()["squeezenet fp32"]["found"]["stages"]
    assert {row["strategy"] for row in stages} == {"concurrent", "merge"}
    assert all(row["predicted_us"] > 0 <= row["measured_us"] for row in stages)
    assert on_desk.call("--piece", "outputs", "--seconds", "100") in (0, 1)
    squeezenet = on_desk.entries()["squeezenet"]
    assert squeezenet["reasons"][0].startswith("DeviceLostError")
