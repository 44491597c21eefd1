"""cuDNN's plans are chosen inside a stage, kept for that stage, and used where it runs."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from weakref import WeakSet

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver, HostMemory
from scripted import fire

from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError
from iosched.profiler.devices.cuda import gpu_cost as cuda_tuning
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans, StoredCudnnPlans
from iosched.profiler.devices.cuda.gpu_cost import CudaStageCost, copies_of, is_tunable, tune
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.chooser import names_from_text, stage_key
from iosched.runtime.cuda.cudnn.fastest import CudnnPlanStore, cudnn_plan_key
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.plan import View
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

pytestmark = needs_compiler

PAIR = Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))
LIKE_IT = Stage(Strategy.CONCURRENT, (("g1",), ("g3",)))
SQUEEZE = Stage(Strategy.CONCURRENT, (("fs",),))


class SeparateKeys(HostChoice):
    """Every kernel and layout has a separate key, as on a GPU."""

    def key(self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> str:
        return cudnn_plan_key(kernel, reads, writes)


def backend_of(memory: CudnnPlanStore | None = None) -> CudaBackend:
    driver = HostDriver()
    return CudaBackend(fire(), driver, SeparateKeys(driver, memory), Precision("fp32"), layout=Layout.NHWC)


def compiled(backend: CudaBackend, stage: Stage = PAIR) -> CudaExecutor:
    executor = backend.compile_stage(stage)
    assert executor is not None
    return executor


Law = Callable[[list[str]], float]


def latencies(monkeypatch: pytest.MonkeyPatch, law: Law) -> list[list[str]]:
    """Makes a stage's latency `law` of its plans' names, in order of their keys; returns the names that were timed."""
    asked: list[list[str]] = []

    def timed(latency: float, repeats: int) -> tuple[float, ...]:
        return (latency,) * repeats

    def repeated(self: CudaExecutor, copies: int) -> Callable[[int], tuple[float, ...]]:
        assert copies > 1
        asked.append([plan.name for _, plan in sorted(self.cudnn_plans, key=lambda pair: pair[1].key)])
        return partial(timed, law(asked[-1]))

    monkeypatch.setattr(CudaExecutor, "repeated", repeated)
    return asked


def one_eight(names: list[str]) -> float:
    """A stage is fastest with eng8 in exactly one of its two kernels."""
    return {0: 100.0, 1: 80.0, 2: 90.0}[names.count("eng8")] + 5 * names.count("eng9")


def test_the_plan_that_is_faster_in_the_stage_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = latencies(monkeypatch, one_eight)
    executor = compiled(backend_of())
    assert is_tunable(executor)
    tuned = tune(executor)
    assert list(tuned.names.values()) == ["eng8"]
    assert tuned.time(2) == (80.0, 80.0)
    assert asked == [
        ["eng7_k1=1", "eng7_k1=1"], ["eng8", "eng7_k1=1"], ["eng8", "eng8"], ["eng9", "eng7_k1=1"], ["eng8", "eng9"],
    ]  # fmt: skip


def test_the_plan_that_is_fastest_alone_stays_where_none_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies(monkeypatch, lambda names: 100 - 0.1 * (len(names) - names.count("eng7_k1=1")))
    tuned = tune(compiled(backend_of()))
    assert (tuned.names, tuned.time(1)) == ({}, (100.0,))


def test_a_plan_that_is_faster_only_most_of_the_time_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeated(self: CudaExecutor, copies: int) -> Callable[[int], tuple[float, ...]]:
        others = any(plan.name != "eng7_k1=1" for _, plan in self.cudnn_plans)
        samples = cycle([80.0, 80.0, 120.0] if others else [100.0])
        return lambda repeats: tuple(next(samples) for _ in range(repeats))

    monkeypatch.setattr(CudaExecutor, "repeated", repeated)
    assert tune(compiled(backend_of())).names == {}


def test_the_number_of_tried_plans_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = latencies(monkeypatch, one_eight)
    monkeypatch.setattr(cuda_tuning, "MOST_TRIED", 1)
    tune(compiled(backend_of()))
    assert len(asked) == 1 + 1


@pytest.mark.parametrize(("error", "ends"), [(DeviceError("no memory"), False), (DeviceLostError("gone"), True)])
def test_a_plan_that_fails_is_no_candidate(monkeypatch: pytest.MonkeyPatch, error: Exception, ends: bool) -> None:
    def law(names: list[str]) -> float:
        if names[0] == "eng8":
            raise error
        return one_eight(names)

    latencies(monkeypatch, law)
    executor = compiled(backend_of())
    if ends:
        with pytest.raises(DeviceLostError):
            tune(executor)
        return
    tuned = tune(executor)
    assert (list(tuned.names.values()), tuned.time(1)) == (["eng8"], (80.0,))


@pytest.mark.parametrize(("once_us", "copies"), [(10.0, 24), (0.0, 24), (200.0, 10), (499.0, 5), (5000.0, 4)])
def test_long_stages_are_not_repeated_as_often(monkeypatch: pytest.MonkeyPatch, once_us: float, copies: int) -> None:
    executor = compiled(backend_of())
    monkeypatch.setattr(executor, "time_launches", lambda repeats: (once_us + 3000, once_us)[:repeats])
    assert copies_of(executor) == copies


def test_one_kernel_alone_is_not_tuned() -> None:
    assert not is_tunable(compiled(backend_of(), SQUEEZE))


def test_plans_taken_later_are_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = latencies(monkeypatch, one_eight)
    executor = compiled(backend_of())
    key = executor.cudnn_plans[0][1].key
    executor.launch_at({view.buffer: executor.address_of(view.buffer) for view in executor.inputs})
    assert executor.time_many(2, 4) == executor.time_many(2, 4) == (100.0, 100.0)
    executor.take_cudnn_plans([{key: "eng8"}])
    assert executor.time_many(2, 4) == (80.0, 80.0)
    assert len(asked) == 2
    assert executor._recaptured == {}


def cost_of(database: ProfileDatabase) -> CudaStageCost:
    return CudaStageCost(backend_of(StoredCudnnPlans(database, "Host")), database, "Host")


def test_a_stage_is_tuned_when_it_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies(monkeypatch, one_eight)
    with ProfileDatabase(":memory:") as database:
        cost = cost_of(database)
        assert cost.known(PAIR) is None
        answers = [cost.stage_latency_us(PAIR), cost.remeasure(PAIR), cost.stage_latency_us(PAIR), cost.remeasure(PAIR)]
        assert answers == [100, 80, 100, 80]
        known = cost.known(PAIR)
        assert known is not None
        assert known.median_us == 80
        assert cost.measurements == 2


def test_measured_stages_give_their_memory_back() -> None:
    with ProfileDatabase(":memory:") as database:
        cost = cost_of(database)
        driver = cost.backend.driver
        allocated: WeakSet[HostMemory] = WeakSet()

        def allocate(nbytes: int) -> HostMemory:
            memory = HostDriver.allocate(driver, nbytes)  # type: ignore[arg-type]
            allocated.add(memory)
            return memory

        driver.allocate = allocate  # type: ignore[method-assign]
        cost.remeasure(PAIR)
        cost.stage_latency_us(SQUEEZE)
        gc.disable()
        try:
            cost.stage_latency_us(LIKE_IT)
            assert len(allocated) <= len(PAIR.groups)  # the workspaces of the lanes
        finally:
            gc.enable()


def test_nothing_is_measured_or_tried_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = latencies(monkeypatch, one_eight)
    with ProfileDatabase(":memory:") as database:
        cost_of(database).remeasure(PAIR)
        n_asked = len(asked)
        again = cost_of(database)
        assert again.remeasure(LIKE_IT) == 80, "alike, so it has the same latency"
        assert (again.measurements, again.cache_hits, len(asked)) == (0, 1, n_asked)


def test_latencies_without_the_plans_they_hold_for_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies(monkeypatch, one_eight)
    with ProfileDatabase(":memory:") as database:
        cost_of(database).remeasure(PAIR)
        forgetful = CudaStageCost(backend_of(), database, "Host")
        assert forgetful.remeasure(PAIR) == 80
        assert forgetful.measurements == 1
        assert forgetful.backend.cudnn_plans_in(PAIR)


def test_a_choice_that_another_process_made_first_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes search at the same time: latencies must be those of the plans that are kept."""
    asked = latencies(monkeypatch, one_eight)
    with ProfileDatabase(":memory:") as database:
        cost = cost_of(database)
        keys = sorted({plan.key for _, plan in compiled(cost.backend).cudnn_plans})

        def late(stage: Stage, names: object) -> object:
            del names
            database.choose(stage_key(cost.backend.signature(stage)), "Host", f"{keys[1]}: eng9")
            return cost.backend._choose.keep(cost.backend.signature(stage), {})

        monkeypatch.setattr(cost.backend, "keep_cudnn_plans", late)
        assert cost.remeasure(PAIR) == 105
        assert asked[-1] == ["eng7_k1=1", "eng9"]


def test_a_choice_holds_in_its_stage_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies(monkeypatch, one_eight)
    with ProfileDatabase(":memory:") as database:
        cost = cost_of(database)
        cost.remeasure(PAIR)
        backend = cost.backend
        graph = backend.graph
        alone = backend.compile(sequential(graph))
        assert {plan.name for _, plan in alone.executor.cudnn_plans} == {"eng7_k1=1"}
        assert not any(key.startswith("stage") for key in alone.cudnn_plans)

        paired = {"f1", "f3"}
        stages = [Stage(Strategy.CONCURRENT, ((o.name,),)) for o in graph.operators if o.name not in paired]
        position = next(index for index, stage in enumerate(stages) if stage.operators == ("fs",))
        stages.insert(position + 1, PAIR)
        stages = [stage for stage in stages if stage.operators not in {("g1",), ("g3",)}]
        stages.insert([stage.operators for stage in stages].index(("gs",)) + 1, LIKE_IT)
        together = backend.compile(Schedule((Block(0, tuple(stages)),)))
        eights = [stage for stage, plan in together.executor.cudnn_plans if plan.name == "eng8"]
        assert eights == [position + 1, [stage.operators for stage in stages].index(("g1", "g3"))]

        (kept,) = [value for key, value in together.cudnn_plans.items() if key.startswith("stage")]
        ((key, name),) = names_from_text(kept).items()
        assert name == "eng8"
        assert key not in together.cudnn_plans, "nothing runs the plan that is fastest alone"
        pinned = backend_of(KnownCudnnPlans(together.cudnn_plans)).compile(Schedule((Block(0, tuple(stages)),)))
        names = [[plan.name for _, plan in model.executor.cudnn_plans] for model in (together, pinned)]
        assert names[0] == names[1]
        assert pinned.cudnn_plans == together.cudnn_plans
        assert np.isfinite(cost.remeasure(SQUEEZE))


def test_a_stage_that_fails_while_it_is_timed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = CudaExecutor.close

    def fails(self: CudaExecutor, *_: int) -> tuple[float, ...]:
        raise ExecutionError("out of resources")

    monkeypatch.setattr(CudaExecutor, "close", lambda self: (closed.append("stage"), close(self))[1])
    monkeypatch.setattr(CudaExecutor, "time_launches", fails)
    monkeypatch.setattr(CudaExecutor, "time_many", fails)
    backend = backend_of()
    with ProfileDatabase(":memory:") as database:
        assert CudaStageCost(backend, database, "gpu").stage_latency_us(PAIR) == math.inf
    assert closed == ["stage"]
    assert backend._part_timer.alone_us(backend._lowered, ["fs"]) == math.inf
    assert closed == ["stage"] * 2
