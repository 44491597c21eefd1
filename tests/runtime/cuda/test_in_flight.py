"""Several models of one backend may run at the same time: they share weights and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver, HostMemory
from host_gpu import HostExchange, OnDevice, on_host
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire

from iosched.models.errors import DeviceError
from iosched.models.graph import ComputationGraph
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.executor import Requests
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.plan import MemorySpace
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule

pytestmark = needs_compiler


class SmallMemory(HostDriver):
    """A GPU whose memory suffices for `left` more allocations."""

    left = 1_000_000

    def allocate(self, nbytes: int) -> HostMemory:
        self.left -= 1
        if self.left < 0:
            raise DeviceError("the GPU is out of memory")
        return super().allocate(nbytes)


def backend(driver: HostDriver) -> CudaBackend:
    return CudaBackend(fire(), driver, HostChoice(driver), Precision("fp32"), exchange=HostExchange(driver))


def inputs_of(seed: int) -> Arrays:
    return random_inputs(fire().graph.inputs, seed=seed)


def addresses(model: CudaModel, *, weights: bool) -> set[int]:
    """Of the buffers of a model, and of everything else that its graphs touch."""
    spaces = {buffer.name: buffer.space for buffer in model.lowering.plan.buffers}
    own = model.executor._buffers.addresses
    shared = {address for name, address in own.items() if spaces.get(name) is MemorySpace.WEIGHT}
    touched = {address for graph in model.executor.graphs for each in graph.operations for address in each.touches}
    return shared if weights else ({*own.values()} | touched) - shared


def same(found: Arrays, expected: Arrays) -> bool:
    return all(np.array_equal(found[name], array) for name, array in expected.items())


@pytest.mark.parametrize("make", [sequential, greedy])
@given(seed=st.integers(0, 2**16), count=st.integers(2, 5))
def test_models_in_flight_compute_the_bits_of_a_single_one(
    make: Callable[[ComputationGraph], Schedule], seed: int, count: int
) -> None:
    driver, draw = HostDriver(seed), random.Random(seed)
    one = backend(driver)
    schedule = make(one.graph)
    expected = [one.compile(schedule).run(inputs_of(each)) for each in range(count)]
    models = one.compile_in_flight(schedule, count)
    for number in draw.sample(range(count), count):  # launched, but not run
        executor, inputs = models[number].executor, inputs_of(number)
        executor.upload({view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs})
        executor.launch()
    for number in draw.sample(range(count), count):
        found = models[number].executor.download()
        assert same({name.removesuffix("@caller"): each for name, each in found.items()}, expected[number])


def test_models_in_flight_share_weights_and_no_other_memory() -> None:
    driver = HostDriver()
    one = backend(driver)
    models = one.compile_in_flight(greedy(one.graph), 3)
    assert len({frozenset(addresses(each, weights=True)) for each in models}) == 1
    own = [addresses(each, weights=False) for each in models]
    assert sum(map(len, own)) == len(set[int]().union(*own)) > 0
    streams = [{id(each.executor.origin)} for each in models]
    assert len(set[int]().union(*streams)) == 3


def test_weights_live_as_long_as_a_model_that_uses_them() -> None:
    driver = HostDriver()
    one = backend(driver)
    first, *others = one.compile_in_flight(greedy(one.graph), 3)
    expected = first.run(inputs_of(1))
    first.close()
    driver.allocate(1 << 16)
    assert all(same(each.run(inputs_of(1)), expected) for each in others)
    others[0].close()
    assert same(others[1].run(inputs_of(1)), expected)
    assert not driver.mistakes


@pytest.mark.parametrize("room", range(0, 30, 3))
def test_too_little_memory_gives_fewer_models(room: int) -> None:
    driver = SmallMemory()
    one = backend(driver)
    alone = one.compile(sequential(one.graph))
    expected = alone.run(inputs_of(2))
    driver.left = room
    if room < len([each for each in alone.lowering.plan.buffers if each.space is not MemorySpace.ARENA]):
        with pytest.raises(DeviceError, match="out of memory"):
            one.compile_in_flight(sequential(one.graph), 4)
        return
    models = one.compile_in_flight(sequential(one.graph), 4)
    assert 1 <= len(models) <= 4
    assert (len(models) < 4) == (driver.left < 0)
    assert all(same(each.run(inputs_of(2)), expected) for each in models)


def test_streams_are_reused_by_the_next_models() -> None:
    """A stream costs a handle of cuDNN."""
    one = backend(HostDriver())

    def origins(models: Sequence[CudaModel]) -> list[object]:
        return [each.executor.origin for each in models]

    first, second = (origins(one.compile_in_flight(make(one.graph), 3)) for make in (sequential, greedy))
    assert first == second


def test_each_thread_gets_the_outputs_of_its_inputs() -> None:
    one = backend(HostDriver())
    requests = Requests(one.compile_in_flight(greedy(one.graph), 3))
    expected = [one.compile(greedy(one.graph)).run(inputs_of(seed)) for seed in range(12)]
    with ThreadPoolExecutor(6) as callers:
        found = list(callers.map(lambda seed: requests.run(inputs_of(seed)), range(12)))
    assert all(map(same, found, expected))
    assert len(requests.time(inputs_of(0), 4)) == 4


def test_arrays_on_the_gpu_go_to_a_free_model() -> None:
    one = backend(HostDriver())
    requests = Requests(one.compile_in_flight(greedy(one.graph), 2))
    given = [OnDevice(np.array(inputs_of(seed)["x"])) for seed in range(2)]
    results = []
    for each in given:
        with requests.free() as model:
            assert isinstance(model, CudaModel)
            results.append(model.run_on_device({"x": each}))
    for seed, result in enumerate(results):  # the second run left the outputs of the first alone
        expected = one.compile(greedy(one.graph)).run(inputs_of(seed))
        assert same({name: on_host(array) for name, array in result.items()}, expected)
