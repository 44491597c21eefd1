"""`benchmarks/gpu.py` measures in pieces: it keeps its budgets, goes on where it was, and outlives what it measures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from host_cuda import needs_compiler

from iosched.models import zoo
from iosched.scheduler.precision import PRECISIONS

ON_HOST = Path(__file__).with_name("host_gpu_case.py")


@pytest.fixture
def gpu(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu")


@pytest.fixture
def cases(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_cases")


@pytest.fixture
def results(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_results")


def test_every_piece_is_planned_to_fit_its_time_and_all_of_them_a_call_of_ten_minutes(cases: ModuleType) -> None:
    pieces = cases.PIECES
    assert next(iter(pieces)) == "first"
    assert pieces["first"].seconds <= 180
    for piece in pieces.values():
        assert 0 < piece.estimate_s <= piece.seconds <= 540
        assert all(case.estimate_s < piece.seconds for case in piece.cases)


def test_the_first_piece_has_the_four_networks_in_both_precisions_fp32_first(cases: ModuleType) -> None:
    found = cases.PIECES["first"].cases
    assert {(case.network, case.precision) for case in found} == {
        (network, precision)
        for network in ("squeezenet", "inception_v3", "randwire", "nasnet_a")
        for precision in ("fp32", "fp16")
    }
    assert [case.precision for case in found] == ["fp32"] * 4 + ["fp16"] * 4
    assert all(case.batch == 1 and {"torch", "torch-cudagraph"} <= set(case.ways) for case in found)


def test_every_case_has_a_name_of_its_own_by_which_it_is_found(cases: ModuleType) -> None:
    every = [case for piece in cases.PIECES.values() for case in piece.cases]
    assert len({cases.key_of(case) for case in every}) == len(every)
    for case in every:
        assert cases.case_of(cases.key_of(case)) == case
        if isinstance(case, cases.NetworkCase):
            assert case.network in zoo.names()
            assert case.precision in PRECISIONS
        else:
            assert all((Path(__file__).parents[2] / word).exists() for word in case.words if word.endswith(".py"))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Turn:
    """What happened in one turn of a case."""

    key: str
    seconds: float
    limit_s: float


@dataclass
class Scripted:
    """Stands for the processes of cases: each takes as long as it is estimated, and ends as a script says.

    Attributes:
        ends: by key, how the turns end, one after another: "" well, or else after the first step.
        slowness: how many times as long as estimated all take.
        host_s: how long the first case takes to prepare.
    """

    cases: ModuleType
    clock: Clock
    ends: Mapping[str, Sequence[str | BaseException]] = field(default_factory=dict)
    slowness: float = 1.0
    host_s: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def begin(self, case: Any) -> ScriptedChild:
        self.prepared.append(self.cases.key_of(case))
        return ScriptedChild(self, case)

    @property
    def keys(self) -> list[str]:
        return [turn.key.partition("/")[2] for turn in self.turns]


@dataclass
class ScriptedChild:
    of: Scripted
    case: Any
    is_ready: bool = False

    def prepare(self, most_s: float) -> None:
        if not self.of.turns:  # all others were prepared while one had the GPU
            self.of.clock.now += min(self.of.host_s, most_s)
        self.is_ready = True

    def go(self, seconds: float, limit_s: float, on_record: Callable[[Mapping[str, Any]], None]) -> str:
        assert self.is_ready
        of, key = self.of, self.of.cases.key_of(self.case)
        earlier = sum(turn.key == key for turn in of.turns)
        of.turns.append(Turn(key, seconds, limit_s))
        taken_s = self.case.estimate_s * of.slowness
        of.clock.now += min(taken_s, limit_s)
        end = [*of.ends.get(key, ()), "", "", ""][earlier]
        if isinstance(end, BaseException):
            raise end
        on_record(record(next(of.numbers), complete=False))
        if taken_s > limit_s:
            return "ended after its time"
        if not end:
            on_record(record(next(of.numbers), complete=True))
        return end

    def stop(self) -> None:
        self.of.stopped.append(self.of.cases.key_of(self.case))


def record(number: int, *, complete: bool) -> dict[str, Any]:
    names = ("sequential", "both")
    return {
        "complete": complete, "number": number, "gpu": "Host 1000", "network": "x", "batch": 1, "precision": "fp32",
        "kernels": dict.fromkeys(names, 9), "median_us": dict.fromkeys(names, 10.0),
        "samples_us": {name: [10.0] * 6 for name in names},
        "relative_error": dict.fromkeys(names, 0.0), "correct": True,
    }  # fmt: skip


@dataclass
class Bench:
    """Calls of the script on one results file."""

    gpu: ModuleType
    cases: ModuleType
    results: ModuleType
    path: Path

    def call(self, piece: str, seconds: float | None = None, **scripted: Any) -> Scripted:
        clock = Clock()
        children = Scripted(self.cases, clock, **scripted)
        chosen = self.cases.PIECES[piece]
        found = self.results.load_results(self.path)
        self.gpu.measure(chosen.cases, found, children, seconds or chosen.seconds, clock)
        assert clock.now <= 1000.0 + (seconds or chosen.seconds)
        assert sorted(children.stopped) == sorted(children.prepared), "a process was left behind"
        return children

    def state(self) -> dict[str, str]:
        """How far each case came, as the file says."""
        entries = json.loads(self.path.read_text())["cases"]
        return {key.partition("/")[2]: entry["state"] for key, entry in entries.items()}


@pytest.fixture
def bench(gpu: ModuleType, cases: ModuleType, results: ModuleType, tmp_path: Path) -> Bench:
    return Bench(gpu, cases, results, tmp_path / "gpu.json")


def test_a_piece_called_again_does_only_what_is_missing(bench: Bench) -> None:
    two_s = sum(case.estimate_s for case in bench.cases.PIECES["tf32"].cases[:2])
    first = bench.call("tf32", seconds=two_s + 1.0)
    assert first.keys == ["squeezenet b1 tf32", "inception_v3 b1 tf32"]
    second = bench.call("tf32")
    assert second.keys == ["randwire b1 tf32", "nasnet_a b1 tf32"]
    assert set(bench.state().values()) == {"done"}
    assert bench.call("tf32").turns == []


def test_the_next_case_is_prepared_while_one_has_the_gpu(bench: Bench) -> None:
    found = bench.call("tf32")
    assert found.prepared == [
        "tf32/squeezenet b1 tf32",
        "tf32/inception_v3 b1 tf32",
        "tf32/randwire b1 tf32",
        "tf32/nasnet_a b1 tf32",
    ]
    assert found.stopped == found.prepared


@pytest.mark.parametrize("slowness", [0.3, 1.0, 1.5, 4.0])
def test_the_time_is_shared_and_kept_and_what_is_lost_comes_last(bench: Bench, slowness: float) -> None:
    """`call` checks that the budget is kept and that no process is left."""
    found = bench.call("first", slowness=slowness)
    for turn in found.turns:
        assert turn.seconds < turn.limit_s
    began = list(dict.fromkeys(found.keys))
    order = [case.name for case in bench.cases.PIECES["first"].cases]
    if slowness <= 1.0:
        assert began == order
        assert set(bench.state().values()) == {"done"}
    else:
        assert began == [name for name in order if name in began]
        assert len(began) < len(order)
        assert began[:2] == order[:2]


def test_a_slow_start_is_no_fault_of_the_first_case(bench: Bench) -> None:
    """The first imports of a machine that has read nothing yet may take longer than the whole case should."""
    found = bench.call("first", host_s=60.0)
    assert found.turns[0].limit_s > bench.cases.PIECES["first"].cases[0].estimate_s
    assert bench.state()[found.keys[0]] == "done"


def test_a_case_that_ended_its_process_is_tried_after_the_others(bench: Bench) -> None:
    crash = "its process was ended by SIGABRT"
    found = bench.call("first", ends={"first/squeezenet b1 fp32": [crash]})
    assert found.keys[0] == found.keys[-1] == "squeezenet b1 fp32"
    assert len(found.keys) == 9
    (entry,) = [
        each for key, each in bench.results.load_results(bench.path).cases.items() if key.endswith("squeezenet b1 fp32")
    ]
    assert (entry["state"], entry["attempts"], entry["reasons"]) == ("done", 2, [crash])


def test_a_case_that_crashes_again_and_again_is_given_up_with_its_first_step_kept(bench: Bench) -> None:
    found = bench.call("tf32", seconds=500.0, ends={"tf32/randwire b1 tf32": ["gone"] * 9})
    assert found.keys.count("randwire b1 tf32") == 3
    assert bench.state()["randwire b1 tf32"] == "partial"
    assert bench.call("tf32").turns == []
    again = bench.results.load_results(bench.path)
    again.again(bench.cases.PIECES["tf32"].cases)
    again.write()
    assert len(bench.call("tf32").turns) == 4
    assert set(bench.state().values()) == {"done"}


def test_a_call_that_never_returned_is_not_in_the_way_of_the_next_one(bench: Bench) -> None:
    """The machine was taken away in the middle of a case: all that the file has is that it was begun."""
    (squeezenet, *_) = bench.cases.PIECES["tf32"].cases
    bench.results.load_results(bench.path).begin(squeezenet)
    assert bench.state() == {"squeezenet b1 tf32": "begun"}
    assert bench.call("tf32").keys[-1] == "squeezenet b1 tf32"


def test_what_is_done_outlives_an_interruption(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.call("tf32", ends={"tf32/inception_v3 b1 tf32": [KeyboardInterrupt()]})
    assert bench.state() == {"squeezenet b1 tf32": "done", "inception_v3 b1 tf32": "failed"}
    assert bench.call("tf32").keys == ["randwire b1 tf32", "nasnet_a b1 tf32", "inception_v3 b1 tf32"]


def test_a_worse_attempt_takes_nothing_away(bench: Bench) -> None:
    bench.call("tf32")
    before = bench.results.load_results(bench.path)
    before.again(bench.cases.PIECES["tf32"].cases)
    before.write()
    found = {key: entry["found"] for key, entry in before.cases.items()}
    bench.call("tf32", ends={key: ["gone"] * 3 for key in found})
    after = bench.results.load_results(bench.path).cases
    assert {key: entry["found"] for key, entry in after.items()} == found


def test_without_a_gpu_nothing_counts_as_tried(bench: Bench, script: Callable[[str], ModuleType]) -> None:
    error = script("gpu_child").NoGpuError
    with pytest.raises(error):
        bench.call("tf32", ends={"tf32/squeezenet b1 tf32": [error()]})
    assert bench.state() == {}


def test_a_file_that_is_half_written_is_never_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.call("tf32", seconds=35.0)
    before = bench.path.read_bytes()

    def no_room(path: Path, text: str, **_: Any) -> int:
        path.write_bytes(text.encode()[:50])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", no_room)
    with pytest.raises(OSError, match="no space"):
        bench.call("tf32")
    assert bench.path.read_bytes() == before


def test_another_file_is_not_written_over(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"format": "iosched.schedule", "version": 1}')
    with pytest.raises(SystemExit) as error:
        gpu.main(["--first", "-o", str(path)])
    assert error.value.code == 2
    assert "is no file of results of this script: give another one with -o" in capsys.readouterr().err


def test_the_list_tells_what_is_missing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.call("tf32", seconds=70.0, ends={"tf32/squeezenet b1 tf32": ["gone"] * 3})
    assert bench.gpu.main(["--list", "-o", str(bench.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (tf32,) = [line for line in lines if line.startswith("tf32")]
    assert "2/4" in tf32
    assert "    squeezenet b1 tf32: partial, gone" in lines


def test_the_driver_has_its_own_version_among_the_others(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NVMLError(Exception):
        pass

    def fails() -> None:
        raise NVMLError

    found = script("gpu_alternatives")
    gpu = SimpleNamespace(versions={"driver": "13000"})
    told = {"nvmlInit": lambda: None, "nvmlSystemGetDriverVersion": lambda: "580.159.04", "NVMLError": NVMLError}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**told))
    assert found.versions(gpu)["nvidia driver"] == "580.159.04"
    for missing in (SimpleNamespace(**told | {"nvmlInit": fails}), None):
        monkeypatch.setitem(sys.modules, "pynvml", missing)
        assert "nvidia driver" not in found.versions(gpu)


@dataclass
class OnHost:
    """Calls of the whole script, with processes of their own for each case, on a GPU made of host memory."""

    gpu: ModuleType
    folder: Path

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(ON_HOST), str(self.folder)]

    def call(self, *words: str) -> int:
        found: int = self.gpu.main([*words, "-o", str(self.folder / "gpu.json")], self.command)
        return found

    def entries(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "gpu.json").read_text())["cases"]
        return {key.partition("/")[2]: entry for key, entry in content.items()}


@pytest.fixture
def on_host(gpu: ModuleType, tmp_path: Path) -> OnHost:
    return OnHost(gpu, tmp_path)


@pytest.mark.slow
@needs_compiler
def test_a_gpu_that_is_lost_costs_one_turn_of_one_case(on_host: OnHost, capfd: pytest.CaptureFixture[str]) -> None:
    """One case ends its process, another one loses the GPU; both come again, after the third."""
    for trouble in ("abort squeezenet", "lost inception_v3"):
        (on_host.folder / trouble).touch()
    assert on_host.call("--piece", "searched-fp32", "--seconds", "300") == 0
    entries = on_host.entries()
    reasons = {key: (entry["state"], entry["attempts"], entry["reasons"]) for key, entry in entries.items()}
    assert reasons == {
        "squeezenet b1 fp32": ("done", 2, ["its process was ended by SIGABRT"]),
        "inception_v3 b1 fp32": ("done", 2, ["DeviceLostError: an illegal address"]),
        "randwire b1 fp32": ("done", 1, []),
    }
    ours = {"sequential", "greedy", "paper", "both", "both, no barriers", "both, by demand", "concurrent", "merge"}
    for entry in entries.values():
        found = entry["found"]
        assert found["correct"]
        assert set(found["median_us"]) == set(found["relative_error"]) == ours
        assert set(found["missing"]) == {"torch", "torch-cudagraph"}
        assert found["median_us"]["sequential"] == 60.0, "runs in a row, without the launch of 7 us"
        assert set(found["idle_us"]["sequential"]) == {67.0}
        assert found["times_as_fast"]["both"]["low"] > 1.0
        assert found["search"]["strategies"]["both"]["signatures"] > 0
        assert {"build", "check", "paper", "open", "compile sequential", "compare"} <= set(found["seconds"])
    capfd.readouterr()
    assert on_host.call("--piece", "searched-fp32") == 0
    assert "all measured" in capfd.readouterr().err


@pytest.mark.slow
@needs_compiler
def test_both_layouts_of_images_are_compared_with_each_other(on_host: OnHost) -> None:
    assert on_host.call("--piece", "layouts", "--only", "squeezenet fp16", "--seconds", "300") == 0
    (found,) = [entry["found"] for entry in on_host.entries().values()]
    schedules = {"sequential", "greedy", "paper"}
    assert set(found["median_us"]) == schedules | {f"{name}, nchw" for name in schedules}
    assert (found["layout"], found["correct"], found["complete"]) == ("nhwc", True, True)
    assert "sequential, nchw" in found["times_as_fast"]


@pytest.mark.slow
def test_a_process_that_does_not_come_back_is_ended(
    on_host: OnHost, cases: ModuleType, script: Callable[[str], ModuleType]
) -> None:
    (on_host.folder / "hang squeezenet").touch()
    child = script("gpu_child")
    folder = on_host.folder
    children = child.Children(0, lambda: "", folder / "gpu.db", folder, on_host.command)
    started = children.begin(cases.case_of("first/squeezenet b1 fp32"))
    started.prepare(300.0)
    assert started.go(60.0, 0.5, lambda record: None) == "ended after 0 s"
    started.stop()
    assert started._process.poll() is not None


def test_a_script_is_a_case_whose_last_words_are_kept(
    on_host: OnHost, cases: ModuleType, script: Callable[[str], ModuleType]
) -> None:
    child = script("gpu_child")
    folder = on_host.folder
    children = child.Children(0, lambda: "", folder / "gpu.db", folder)
    for code, complete in ((0, True), (4, False)):
        words = ("-c", f"print('{{gpu}} {{database}}'); print('last'); raise SystemExit({code})")
        case = cases.CommandCase("tests", "x", words, 1.0, "printed.txt")
        found: list[Mapping[str, Any]] = []
        started = children.begin(case)
        reason = started.go(60.0, 60.0, found.append)
        started.stop()
        assert reason == ("" if complete else "its process ended with exit code 4")
        assert [(each["complete"], each["printed"]) for each in found] == [
            (complete, [f"0 {folder / 'gpu.db'}", "last"])
        ]
    assert (folder / "printed.txt").read_text().splitlines()[-1] == "last"


@pytest.mark.slow
def test_no_gpu_and_another_gpu_are_told_apart_from_failures(
    on_host: OnHost, results: ModuleType, cases: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    (on_host.folder / "no GPU").touch()
    assert on_host.call("--first") == 3
    assert "nothing to measure on: no CUDA driver" in capfd.readouterr().err
    assert on_host.entries() == {}
    (on_host.folder / "no GPU").unlink()
    found = results.load_results(on_host.folder / "gpu.json")
    found.begin(cases.case_of("first/squeezenet b1 fp32"))
    found.keep(cases.case_of("first/squeezenet b1 fp32"), {**record(0, complete=True), "gpu": "Host 2000"})
    assert on_host.call("--first", "--only", "inception_v3 fp32") == 3
    assert "the results are of Host 2000, and here is Host 1000: give another file with -o" in capfd.readouterr().err
