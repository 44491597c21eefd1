"""A stage that is timed finds its weights where a run of the whole model finds them."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from host_cuda import needs_compiler
from host_driver import Event, Graph, HostChoice, HostDriver, HostMemory, HostPlan, Operation, Stream
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlanNames
from iosched.runtime.cuda.execute.buffers import FlushedWeights, flush_nbytes, flushed_weights
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.plan import MemorySpace, View
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Stage, Strategy

pytestmark = needs_compiler

L2 = 100_000
CHANNELS = 64  # a convolution by 1x1 has 16 KB of weights, and 4 KB of outputs


def model() -> Model:
    """Seven convolutions with 128 KB of weights, and a pooling."""
    nodes = [helper.make_node("Relu", ["x"], ["y0"])]
    nodes += [helper.make_node("Conv", [f"y{i}", f"w{i}"], [f"y{i + 1}"], name=f"conv{i}") for i in range(4)]
    nodes += [helper.make_node("Conv", ["y4", f"w{i}"], [f"z{i}"], name=f"conv{i}") for i in (4, 5)]
    nodes += [
        helper.make_node("Concat", ["z4", "z5"], ["z"], axis=1),
        helper.make_node("Conv", ["z", "w6"], ["last"], name="conv6"),
        helper.make_node("MaxPool", ["last"], ["out"], kernel_shape=[2, 2]),
    ]
    weights = {f"w{i}": weight(CHANNELS, CHANNELS, 1, 1, seed=i) for i in range(6)}
    weights["w6"] = weight(CHANNELS, 2 * CHANNELS, 1, 1)
    return loaded(proto_of(nodes, {"x": (1, CHANNELS, 4, 4)}, ["out"], weights))


class Cached(HostDriver):
    """Its time is the number of bytes that missed its last cache, which holds the latest bytes touched."""

    def __init__(self, l2_nbytes: int) -> None:
        super().__init__()
        self.l2_nbytes = l2_nbytes
        self.sizes: dict[int, int] = {}
        self.held: OrderedDict[int, int] = OrderedDict()
        self.missed = 0
        self.at: dict[int, int] = {}
        self.is_inside = False

    def allocate(self, nbytes: int) -> HostMemory:
        memory = super().allocate(nbytes)
        self.sizes[memory.ptr] = nbytes
        return memory

    def record(self, event: Event, stream: Stream) -> None:
        event.recorded = self._add(stream, lambda: self.at.update({id(event): self.missed}))

    def elapsed_us(self, start: Event, end: Event) -> float:
        super().elapsed_us(start, end)
        return self.at[id(end)] - self.at[id(start)]

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        self.is_inside = True  # what a graph touches, its kernels touch
        super().launch_graph(graph, stream)
        self.is_inside = False

    def _add(
        self, stream: Stream, run: Callable[[], Any], after: Sequence[Operation] = (), touches: Iterable[int] = ()
    ) -> Operation:
        touched = tuple(touches)
        seen = run if self.is_inside else partial(self._touching, run, touched)
        return super()._add(stream, seen, after, touched)

    def _touching(self, run: Callable[[], Any], touched: Sequence[int]) -> None:
        for address in touched:
            nbytes = self.sizes.get(address, 4 * CHANNELS * 16)
            self.missed += 0 if self.held.pop(address, 0) else nbytes
            self.held[address] = nbytes
            while sum(self.held.values()) > self.l2_nbytes:
                self.held.popitem(last=False)
        run()


class SizedPlan(HostPlan):
    """Reports the addresses and sizes of its reads and writes to the driver."""

    def execute(self, addresses: Sequence[int], workspace: int, stream: Stream) -> None:
        assert isinstance(self.driver, Cached)
        views = (*self.reads, *self.writes)
        self.driver.sizes |= {at: view.nbytes for at, view in zip(addresses, views, strict=True)}
        super().execute(addresses, workspace, stream)


class SizedChoice(HostChoice):
    def __call__(
        self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames = FASTEST_ALONE
    ) -> HostPlan:
        return SizedPlan(**vars(super().__call__(kernel, reads, writes, names)))


def backend(l2_nbytes: int) -> CudaBackend:
    driver = Cached(l2_nbytes)
    return CudaBackend(model(), driver, SizedChoice(driver), Precision("fp32"))


def stages(found: CudaBackend) -> list[Stage]:
    """Those that run something: a Concat does not."""
    return [stage for stage in greedy(found.graph).stages if stage.operators != ("z",)]


def alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


def compiled(found: CudaBackend, stage: Stage) -> CudaExecutor:
    executor = found.compile_stage(stage)
    assert executor is not None
    return executor


def weights_nbytes(executor: CudaExecutor) -> int:
    return sum(buffer.nbytes for buffer in executor._plan.buffers if buffer.space is MemorySpace.WEIGHT)


@pytest.mark.parametrize("copies", [1, 4, 24])
def test_the_weights_of_a_stage_come_from_memory_if_the_model_exceeds_the_cache(copies: int) -> None:
    found = backend(L2)
    for stage in stages(found):
        executor = compiled(found, stage)
        assert executor.time_many(3, copies) == pytest.approx((weights_nbytes(executor),) * 3)


def test_a_stage_runs_from_cache_if_the_cache_is_larger_than_the_model() -> None:
    found = backend(1 << 20)
    for stage in stages(found):
        executor = compiled(found, stage)
        assert executor.time_many(3, 24)[1:] == (0, 0)
    assert isinstance(found.driver, Cached)
    assert found.driver.copied_nbytes == 0


@pytest.mark.parametrize("l2_nbytes", [L2, 1 << 20])
def test_the_stages_together_read_as_many_bytes_as_the_whole_model(l2_nbytes: int) -> None:
    """Except for inputs, outputs and the arena, which each run overwrites."""
    found = backend(l2_nbytes)
    whole = found.compile(sequential(found.graph))
    of_weights = weights_nbytes(whole.executor)
    in_a_row = whole.executor.time_launches(3)[-1]
    added = sum(compiled(found, stage).time_many(3, 24)[-1] for stage in stages(found))
    beside = whole.lowering.plan.nbytes - of_weights
    assert added <= in_a_row <= added + beside
    assert added == (of_weights if l2_nbytes == L2 else 0)


@pytest.mark.parametrize("copies", [1, 3])
def test_runs_on_copies_compute_the_same(copies: int) -> None:
    executor = compiled(backend(L2), alone("y2"))

    def computed() -> bytes:
        executor.driver.synchronize(executor.origin)
        return ctypes.string_at(executor.address_of("y2"), 4 * CHANNELS * 16)

    executor.launch()
    before = computed()
    executor.time_many(1, copies)
    executor.poison()
    assert computed() != before
    executor.time_many(1, copies)
    assert computed() == before


def copied(count: int, nbytes: int = 150_000) -> tuple[CudaExecutor, FlushedWeights]:
    found = backend(L2)
    executor = compiled(found, alone("y2"))
    addresses = executor._buffers.addresses
    cold = flushed_weights(executor._plan, addresses, nbytes, count, found.driver, executor.origin)
    assert cold is not None
    return executor, cold


def test_copies_of_weights_are_equal_and_do_not_overlap() -> None:
    executor, cold = copied(3)
    sizes = {buffer.name: buffer.nbytes for buffer in executor._plan.buffers if buffer.space is MemorySpace.WEIGHT}
    assert len(cold.addresses) == 3
    places = [executor._buffers.addresses, *cold.addresses]
    for name, nbytes in sizes.items():
        contents = {ctypes.string_at(place[name], nbytes) for place in places}
        assert len(contents) == 1
    spans = sorted((place[name], place[name] + nbytes) for place in places for name, nbytes in sizes.items())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(place[name] % 256 == 0 for place in cold.addresses for name in sizes)


@pytest.mark.parametrize(("nbytes", "count"), [(16_000, 1), (17_000, 2), (150_000, 10), (10_000_000, 24)])
def test_no_more_copies_are_made_than_needed(nbytes: int, count: int) -> None:
    _, cold = copied(24, nbytes)
    assert len(cold.addresses) == count


def test_without_weights_no_copies_are_made() -> None:
    found = backend(L2)
    driver = found.driver
    assert isinstance(driver, Cached)
    executor = compiled(found, alone("out"))
    launches = len(driver.launches)
    executor.time_many(2, 4)
    assert driver.copied_nbytes == 0
    assert len(driver.launches) == launches + 4, "those that were captured"


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 27))
def test_flushed_bytes_are_limited_by_model_and_cache_size(model_nbytes: int, l2_nbytes: int) -> None:
    found = flush_nbytes(model_nbytes, l2_nbytes)
    assert (found == 0) == (model_nbytes <= l2_nbytes or l2_nbytes == 0)
    assert found <= min(model_nbytes, 2 * l2_nbytes)
    assert found == 0 or found >= l2_nbytes


class Full(Cached):
    """Has memory for `left` more allocations."""

    left = 1_000

    def allocate(self, nbytes: int) -> HostMemory:
        if not self.left:
            raise DeviceError("no memory left")
        self.left -= 1
        return super().allocate(nbytes)


@pytest.mark.parametrize("left", range(3))
def test_without_memory_for_copies_none_is_freed_too_early(left: int) -> None:
    driver = Full(L2)
    found = CudaBackend(model(), driver, SizedChoice(driver), Precision("fp32"))
    executor = compiled(found, alone("y1"))
    driver.left = left
    with pytest.raises(DeviceError, match="no memory left"):
        executor.time_many(1, 4)
    driver.left = 1_000
    assert executor.time_many(2, 4)[-1] == weights_nbytes(executor)
    assert driver.mistakes == []


def test_copies_are_freed_with_the_executor() -> None:
    found = backend(L2)
    driver = found.driver
    assert isinstance(driver, Cached)
    freed: list[int] = []
    driver._free = lambda address, nbytes, array: freed.append(nbytes)  # type: ignore[method-assign]
    executor = compiled(found, alone("y1"))
    executor.time_many(1, 4)
    executor.close()
    assert sum(freed) > 4 * 4 * CHANNELS**2 + L2
