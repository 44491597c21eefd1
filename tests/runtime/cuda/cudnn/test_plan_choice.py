"""Which plan runs a kernel: timed once, kept with the next best, loaded or built again, replaced where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import fake_cudnn
import pytest
from host_driver import Event, Graph, HostDriver, HostMemory, Operation, Stream

from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError
from iosched.runtime.cuda.cudnn import fastest
from iosched.runtime.cuda.cudnn.chooser import (
    CudnnPlanCandidate,
    candidates_from_text,
    candidates_to_text,
    names_from_text,
    names_to_text,
    stage_key,
)
from iosched.runtime.cuda.cudnn.fastest import CudnnHandles, FastestCudnnPlans, cudnn_plan_key
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.source.activation import RELU
from iosched.runtime.plan import View

KERNEL = Conv((1, 1), (1, 1, 1, 1), activation=RELU, precision=Precision("fp32"))
IMAGE = View("x", "float32", (1, 8, 4, 4), 0, 512, (512, 4, 128, 32))
READS = (IMAGE, View("w", "float32", (8, 3, 3, 8), 0, 2304), View("b", "float32", (8,), 0, 32))
WRITES = (IMAGE,)
KEY = cudnn_plan_key(KERNEL, READS, WRITES)


@dataclass
class Memory:
    """Choices and plans in dictionaries."""

    times: bool = True
    choices: dict[str, str] = field(default_factory=dict)
    plans: dict[tuple[str, str], bytes] = field(default_factory=dict)
    lost: set[tuple[str, str]] = field(default_factory=set)
    tried: list[str] = field(default_factory=list)

    def choice(self, key: str) -> str | None:
        return self.choices.get(key)

    def choose(self, key: str, value: str) -> str:
        return self.choices.setdefault(key, value)

    def plan(self, key: str, name: str) -> bytes | None:
        return self.plans.get((key, name))

    def keep_plan(self, key: str, name: str, content: bytes) -> None:
        self.plans[key, name] = content

    def fatal(self, key: str) -> frozenset[str]:
        return frozenset(name for of, name in self.lost if of == key)

    @contextmanager
    def trying(self, key: str, name: str) -> Iterator[None]:
        self.tried.append(name)
        self.lost.add((key, name))  # until it is known to be alive
        try:
            yield
        except DeviceLostError:
            raise
        except BaseException:
            self.lost.remove((key, name))
            raise
        self.lost.remove((key, name))


class Clock(HostDriver):
    """Plans take the times of a table, launches of graphs one microsecond more; runs go onto the streams."""

    def __init__(self, latency_us: dict[str, float]) -> None:
        super().__init__()
        self.latency_us = latency_us
        self.now_us = 0.0
        self.streams: dict[int, Stream] = {}
        self.at: dict[int, float] = {}
        self.runs: list[str] = []
        self.fails_in_capture: set[str] = set()
        self.breaks: set[str] = set()
        self.is_lost = False
        self.filled_nbytes: list[int] = []
        self.slow_runs = 0
        self.room = 10_000

    def new_stream(self) -> Stream:
        stream = super().new_stream()
        self.streams[stream.ptr] = stream
        return stream

    def record(self, event: Event, stream: Stream) -> None:
        def stamp() -> None:
            self.at[id(event)] = self.now_us

        event.recorded = self._add(stream, stamp)

    def elapsed_us(self, start: Event, end: Event) -> float:
        super().elapsed_us(start, end)
        return self.at[id(end)] - self.at[id(start)]

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        self._add(stream, lambda: self._pass(1.0))
        super().launch_graph(graph, stream)

    def synchronize(self, stream: Stream) -> None:
        if self.is_lost:
            raise DeviceLostError("an illegal address")
        super().synchronize(stream)

    def fill(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        assert value not in (0, 0xFF), "zeros and NaNs do not take the usual time"
        self.filled_nbytes.append(nbytes)
        super().fill(address, value, nbytes, stream)

    def allocate(self, nbytes: int) -> HostMemory:
        if nbytes > self.room:
            raise DeviceError("no memory left")
        return super().allocate(nbytes)

    def execute(self, name: str, addresses: list[int], workspace: int, handle: fake_cudnn.Handle) -> None:
        stream = self.streams[handle.stream]
        if name in self.breaks:
            self.is_lost = True
            raise fake_cudnn.NotSupportedError("CUDNN_STATUS_EXECUTION_FAILED")
        if name not in self.latency_us:
            raise fake_cudnn.NotSupportedError(f"{name} does not run")
        if stream.capture is not None and name in self.fails_in_capture:
            raise fake_cudnn.NotSupportedError(f"{name} cannot be captured")
        assert len(addresses) == len({*addresses}) == len(READS) + len(WRITES)
        assert workspace
        self.runs.append(name)
        self._add(stream, lambda: self._run(self.latency_us[name]))

    def _run(self, spent_us: float) -> None:
        self.slow_runs -= 1
        self._pass(spent_us * (5 if self.slow_runs >= 0 else 1))

    def _pass(self, spent_us: float) -> None:
        self.now_us += spent_us


LATENCY_US = {"eng1": 20.0, "eng2_k2=1": 8.0, "eng3": 10.0, "eng4": 9.0, "eng5": 300.0, "eng6": 8.5, "eng7": 8.8}


def installed(
    monkeypatch: pytest.MonkeyPatch, latency_us: dict[str, float], names: Sequence[str] = (), **facts: Any
) -> tuple[Clock, list[fake_cudnn.Graph]]:
    driver = Clock(latency_us)
    offered = [(name, "") for name in (names or latency_us)]
    return driver, fake_cudnn.install(monkeypatch, offered, execute=driver.execute, **facts)


def chosen(driver: Clock, memory: Memory, names: dict[str, str] | None = None) -> str:
    return FastestCudnnPlans(driver, memory)(KERNEL, READS, WRITES, names or {}).name


def test_the_fastest_plan_is_chosen_and_close_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    memory = Memory()
    plan = FastestCudnnPlans(driver, memory)(KERNEL, READS, WRITES)
    assert (plan.key, plan.name) == (KEY, "eng2_k2=1")
    names = ["eng2_k2=1", "eng6", "eng7", "eng4"]
    assert [each.name for each in plan.candidates] == names
    assert [each.latency_us for each in plan.candidates] == pytest.approx([8.1, 8.6, 8.9, 9.1])
    assert memory.choices == {KEY: "eng2_k2=1 8.10us, eng6 8.60us, eng7 8.90us, eng4 9.10us"}
    assert list(memory.plans) == [(KEY, "eng2_k2=1")]
    assert driver.runs.count("eng5") == 2, "slow plans are dropped after a first look"
    assert all(nbytes >= view.nbytes for nbytes, view in zip(driver.filled_nbytes, (*READS, *WRITES), strict=True))


def test_a_gpu_that_is_slow_at_first_does_not_change_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, {"eng1": 8.0, "eng2": 9.0, "eng3": 10.0})
    driver.slow_runs = 30
    assert chosen(driver, Memory()) == "eng1"


class Waking(Clock):
    """Like a GPU: an idle one waits for a launch, one that is busy does not. A run that is launched by itself takes as
    long as the host, which is slower at some plans than at others."""

    def __init__(self, latency_us: dict[str, float], host_us: dict[str, float]) -> None:
        super().__init__(latency_us)
        self.host_us = host_us
        self.launched: list[Operation] = []

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        if all(each.done for each in self.launched):
            self._add(stream, lambda: self._pass(10.0))
        HostDriver.launch_graph(self, graph, stream)
        assert stream.last is not None
        self.launched.append(stream.last)

    def execute(self, name: str, addresses: list[int], workspace: int, handle: fake_cudnn.Handle) -> None:
        stream = self.streams[handle.stream]
        if stream.capture is None:
            self._add(stream, lambda: self._pass(self.host_us.get(name, 20.0)))
        super().execute(name, addresses, workspace, handle)


def test_plans_are_ranked_by_gpu_time_and_not_by_launch_time(monkeypatch: pytest.MonkeyPatch) -> None:
    latency_us = {"eng1": 5.6, "eng2": 5.3, "eng3": 5.0, "eng4": 6.0}
    driver = Waking(latency_us, {"eng1": 10.0, "eng2": 15.0, "eng3": 33.0, "eng4": 20.0})
    fake_cudnn.install(monkeypatch, [(name, "") for name in latency_us], execute=driver.execute)
    found = FastestCudnnPlans(driver, Memory())(KERNEL, READS, WRITES).candidates
    assert [each.name for each in found] == sorted(latency_us, key=latency_us.__getitem__)
    assert [each.latency_us for each in found] == pytest.approx(sorted(latency_us.values()), abs=0.01)


def test_a_known_choice_is_neither_timed_nor_built(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, graphs = installed(monkeypatch, LATENCY_US)
    memory = Memory()
    assert chosen(driver, memory) == "eng2_k2=1"
    driver.runs.clear()
    graphs.clear()
    choice = FastestCudnnPlans(driver, memory)
    plan = choice(KERNEL, READS, WRITES)
    assert [each.name for each in plan.candidates] == ["eng2_k2=1", "eng6", "eng7", "eng4"]
    assert plan.name == "eng2_k2=1"
    assert plan.workspace_nbytes == 100
    assert (driver.runs, choice.notes) == ([], ())
    assert [graph.built for graph in graphs] == [[]]

    stream = driver.new_stream()
    plan.execute([1, 2, 3, 4], 5, stream)
    driver.synchronize(stream)
    assert driver.runs == ["eng2_k2=1"]


def test_another_plan_can_be_requested_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, graphs = installed(monkeypatch, LATENCY_US)
    memory = Memory()
    assert chosen(driver, memory, {KEY: "eng4"}) == "eng4"
    assert chosen(driver, memory, {KEY: "eng3", "another": "eng1"}) == "eng3"
    assert set(graphs[-1].built) == {2}, "it was not kept, so it is built again"
    assert (KEY, "eng3") in memory.plans
    graphs.clear()
    assert chosen(driver, memory, {KEY: "eng3"}) == "eng3"
    assert graphs[-1].built == []


def test_a_stored_plan_that_cannot_be_loaded_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    memory = Memory(choices={KEY: "eng4"}, plans={(KEY, "eng4"): b"0 eng44"})
    choice = FastestCudnnPlans(driver, memory)
    assert (choice(KERNEL, READS, WRITES).name, choice.notes) == ("eng4", ())
    assert memory.plans == {(KEY, "eng4"): b"3 eng4"}


def test_plans_that_cudnn_cannot_build_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fastest alone if a stage named them, and by cuDNN's first guess if that one is missing too."""
    driver, _ = installed(monkeypatch, LATENCY_US)
    known = FastestCudnnPlans(driver, Memory(times=False, choices={KEY: "eng4"}))
    assert known(KERNEL, READS, WRITES, {KEY: "eng99"}).name == "eng4"
    assert "cuDNN plans replaced because cuDNN cannot build them: 1 " in known.notes[0]
    assert "'eng99'" in known.notes[0]
    lost = FastestCudnnPlans(driver, Memory(times=False, choices={KEY: "eng98"}))
    assert [lost(KERNEL, READS, WRITES, names).name for names in ({}, {KEY: "eng97"}, {})] == ["eng1"] * 3
    assert "cuDNN plans replaced because cuDNN cannot build them: 2 " in lost.notes[0]
    assert driver.runs == []


def test_without_timing_the_first_guess_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    memory = Memory(times=False)
    choice = FastestCudnnPlans(driver, memory)
    assert choice(KERNEL, READS, WRITES).name == "eng1"
    assert (driver.runs, memory.choices, choice.notes) == ([], {}, ())


COPIES = {"eng1": 4096, "eng2_k2=1": 9000, "eng3": 600, "eng4": 0}
"""Workspaces in bytes; the image has 512."""


def test_without_timing_a_plan_without_copies_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, graphs = installed(monkeypatch, LATENCY_US, workspaces_nbytes=COPIES)
    assert chosen(driver, Memory(times=False)) == "eng4"
    assert graphs[0].built == [0, 1, 2, 3], "none after it"
    assert driver.runs == []


def test_without_timing_transformed_images_do_not_count_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US, workspaces_nbytes=COPIES, noted={"WINOGRAD_TILE_4x4": ["eng3"]})
    assert chosen(driver, Memory(times=False)) == "eng3"


def test_without_timing_tensor_cores_are_used_where_the_precision_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"workspaces_nbytes": {**COPIES, "eng6": 0}, "noted": {"TENSOR_CORE": ["eng1", "eng6"]}}
    for name, expected in (("tf32", "eng6"), ("fp32", "eng4")):
        driver, _ = installed(monkeypatch, LATENCY_US, **facts)
        plans = FastestCudnnPlans(driver, Memory(times=False))
        assert plans(replace(KERNEL, precision=Precision(name)), READS, WRITES).name == expected


@pytest.mark.parametrize(("at", "n_built"), [(3, 12), (15, 16)])
def test_a_plan_without_copies_is_always_among_the_timed_plans(
    monkeypatch: pytest.MonkeyPatch, at: int, n_built: int
) -> None:
    names = [f"eng{1 + index}_k2=0" for index in range(20)]
    workspaces = {name: 0 if index in (at, 18) else 600 for index, name in enumerate(names)}
    driver, graphs = installed(monkeypatch, dict.fromkeys(names, 9.0) | {names[at]: 8.0}, workspaces_nbytes=workspaces)
    assert chosen(driver, Memory()) == names[at]
    assert len({*graphs[0].built}) == n_built


def test_engines_that_fail_are_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, {"eng1": 5.0, "eng2": 9.0}, ["eng0", "eng1", "eng2"])
    driver.fails_in_capture = {"eng1"}
    memory, lanes = Memory(), Lanes(driver)
    plan = FastestCudnnPlans(driver, memory, lanes)(KERNEL, READS, WRITES)
    assert [each.name for each in plan.candidates] == ["eng2"]
    assert all(stream.capture is None for stream in driver.streams.values())


def test_a_plan_whose_workspace_does_not_fit_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace of plan k is 100 k bytes here."""
    driver, _ = installed(monkeypatch, {f"eng{k}": 50.0 - k for k in range(8)})
    driver.room = max(2304 + 16, 100)
    driver.latency_us["eng7"] = 1.0
    assert chosen(driver, Memory()) == "eng7"
    monkeypatch.setattr(fake_cudnn.Graph, "get_workspace_size_plan_at_index", lambda self, index: 3000 * index)
    assert chosen(driver, Memory()) == "eng0"


def test_a_plan_with_a_large_workspace_is_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream has such a workspace, and keeps it."""
    driver, _ = installed(monkeypatch, {f"eng{k}": 50.0 - k for k in range(6)})
    monkeypatch.setattr(fastest, "MAX_WORKSPACE_NBYTES", 300)
    choice = FastestCudnnPlans(driver, Memory())
    assert choice(KERNEL, READS, WRITES).name == "eng3"
    assert "cuDNN plans skipped because they need more than 0 MiB of workspace: 2 " in choice.notes[0]
    assert "'eng4' for Conv(" in choice.notes[0]


def test_the_smallest_workspace_is_used_if_all_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, {f"eng{k}": 50.0 - k for k in range(6)})
    monkeypatch.setattr(fastest, "MAX_WORKSPACE_NBYTES", 3000)
    monkeypatch.setattr(fake_cudnn.Graph, "get_workspace_size_plan_at_index", lambda self, index: 9000 - 1000 * index)
    choice = FastestCudnnPlans(driver, Memory())
    assert (choice(KERNEL, READS, WRITES).name, choice.notes) == ("eng5", ())
    monkeypatch.setattr(fastest, "MAX_WORKSPACE_NBYTES", 6500)
    choice = FastestCudnnPlans(driver, Memory(times=False))
    assert choice(KERNEL, READS, WRITES).name == "eng3", "cuDNN's first guess of those that are small enough"


def test_tensors_that_are_still_being_filled_are_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    driver.room = 2000  # the image, but not the filter
    with suppress(DeviceError):
        chosen(driver, Memory())
    assert driver.mistakes == []
    driver.room = 10_000
    monkeypatch.setattr(fake_cudnn.Graph, "get_workspace_size_plan_at_index", lambda self, index: 20_000)
    with suppress(DeviceError):
        chosen(driver, Memory())
    assert driver.mistakes == []


def test_it_is_an_error_if_no_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, {}, ["eng0"])
    with pytest.raises(DeviceError, match="no cuDNN engine runs"):
        chosen(driver, Memory())
    assert driver.mistakes == [], "tensors were freed that were still being filled"
    driver, _ = installed(monkeypatch, {})
    with pytest.raises(DeviceError, match="no engine for"):
        chosen(driver, Memory())


def test_a_lost_gpu_ends_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)

    def gone(stream: Stream) -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(driver, "synchronize", gone)
    with pytest.raises(DeviceLostError):
        chosen(driver, Memory())


def test_a_plan_that_breaks_the_gpu_is_never_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN reports a failure to execute, as for any plan; only the next call shows that the GPU is lost."""
    driver, _ = installed(monkeypatch, LATENCY_US)
    driver.breaks = {"eng2_k2=1"}
    memory = Memory()
    with pytest.raises(DeviceLostError):
        chosen(driver, memory)
    assert memory.lost == {(KEY, "eng2_k2=1")}
    assert memory.choices == {}

    driver, graphs = installed(monkeypatch, LATENCY_US)
    driver.breaks = {"eng2_k2=1"}
    choice = FastestCudnnPlans(driver, memory)
    assert choice(KERNEL, READS, WRITES).name == "eng6"
    assert memory.tried.count("eng2_k2=1") == 2, "built once, and run"
    assert 1 not in graphs[-1].built, "it is not even built"
    assert "cuDNN plans skipped because they crashed the GPU or the process before: 1 " in choice.notes[0]
    assert "'eng2_k2=1' for Conv(" in choice.notes[0]


def test_a_plan_that_broke_the_gpu_is_never_the_first_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    memory = Memory(times=False, lost={(KEY, "eng1")})
    assert chosen(driver, memory) == "eng2_k2=1"
    memory.lost = {(KEY, name) for name in LATENCY_US}
    with pytest.raises(DeviceError, match=r"all plans crashed the GPU or the process before .eng1, eng2_k2=1"):
        chosen(driver, memory)


@pytest.mark.parametrize(("times", "names"), [(True, {}), (False, {}), (True, {KEY: "eng2_k2=1"})])
def test_a_plan_that_ends_the_process_while_it_is_built_is_not_built_again(
    monkeypatch: pytest.MonkeyPatch, times: bool, names: dict[str, str]
) -> None:
    """As one that is timed, as cuDNN's first guess, and by its name."""
    driver, _ = installed(monkeypatch, LATENCY_US, ["eng2_k2=1", "eng6", "eng7"])
    memory = Memory(times, choices={KEY: "eng6"} if names else {})
    with monkeypatch.context() as patch:
        patch.setattr(fake_cudnn.Graph, "build_plan_at_index", dies)
        with pytest.raises(DeviceLostError):
            chosen(driver, memory, names)
    assert memory.lost == {(KEY, "eng2_k2=1")}
    assert chosen(driver, memory, names) == "eng6"


def dies(graph: fake_cudnn.Graph, index: int) -> None:
    """Simulates the end of the process, after which nothing is kept."""
    raise DeviceLostError(f"it was {index}")


def test_plans_that_run_are_tried_alone_and_in_a_graph_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, {"eng1": 5.0, "eng2": 9.0}, ["eng0", "eng1", "eng2"])
    memory = Memory()
    chosen(driver, memory)
    assert sorted(memory.tried) == [*["eng0"] * 2, *["eng1"] * 3, *["eng2"] * 3], "built, and run"
    assert memory.lost == set()


def test_the_first_choice_of_another_process_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)

    class Late(Memory):
        def choose(self, key: str, value: str) -> str:
            return "eng3"

    assert chosen(driver, Late()) == "eng3"


def test_a_plan_that_cudnn_refuses_to_run_is_an_execution_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, {"eng0": 1.0})
    plan = FastestCudnnPlans(driver, Memory())(KERNEL, READS, WRITES)
    driver.latency_us.clear()
    with pytest.raises(ExecutionError, match="eng0 does not run"):
        plan.execute([1, 2, 3, 4], 5, driver.new_stream())


def test_streams_have_one_handle_each(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    handles, lanes = CudnnHandles(driver), Lanes(driver)
    for _ in range(3):
        FastestCudnnPlans(driver, Memory(), lanes, handles)(KERNEL, READS, WRITES)
    assert len(driver.streams) == 1
    assert handles.of(lanes.origin) is handles.of(lanes.origin)
    assert handles.of(lanes.origin).stream == lanes.origin.ptr


def test_choices_of_stages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = installed(monkeypatch, LATENCY_US)
    memory = Memory()
    assert FastestCudnnPlans(driver, memory).of_stage("s") is None
    assert FastestCudnnPlans(driver, memory).keep("s", {KEY: "eng3"}) == {KEY: "eng3"}
    assert FastestCudnnPlans(driver, memory).keep("s", {KEY: "eng4"}) == {KEY: "eng3"}
    assert FastestCudnnPlans(driver, memory).of_stage("s") == {KEY: "eng3"}
    assert FastestCudnnPlans(driver, memory).keep("t", {}) == {}
    assert FastestCudnnPlans(driver, memory).of_stage("t") == {}
    assert memory.choices == {stage_key("s"): f"{KEY}: eng3", stage_key("t"): ""}


def test_choices_are_read_as_they_were_written() -> None:
    names = {"b": "eng3_k2=1", "a": "eng0"}
    assert names_to_text(names) == "a: eng0, b: eng3_k2=1"
    assert names_from_text(names_to_text(names)) == names
    candidates = (CudnnPlanCandidate("eng3_k2=1", 2.5), CudnnPlanCandidate("eng0"))
    assert candidates_from_text(candidates_to_text(candidates)) == candidates


@pytest.mark.parametrize("text", ["", ", ,", "a", "a:", ": : :", "{}"])
def test_malformed_choices_are_ignored(text: str) -> None:
    assert names_from_text(text) == {}


@pytest.mark.parametrize("text", ["eng0 fast", "eng0 us", "eng0 1us 2us"])
def test_malformed_latencies_are_ignored(text: str) -> None:
    (found,) = candidates_from_text(text)
    assert found.name == "eng0"
    assert candidates_from_text(" , ,,") == ()
