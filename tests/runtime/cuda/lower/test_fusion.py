"""Depthwise and pointwise convolutions become one kernel where that was found to be faster, and compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver, Kept
from lowering import random_schedule
from networks import zoo_model
from onnx.helper import make_node
from scripted import fire
from small_models import loaded, proto_of, separable_operators, separables, weight

from iosched.models.errors import DeviceLostError, ExecutionError
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Gpu, Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import Convolution
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.kernels.separable import Separable, lower_separable
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.fused import KernelChoice
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.cuda.lower.timed_choices import OperatorLatency, fused_by_choice, fusion_key
from iosched.runtime.cuda.source.activation import RELU
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential

FP32 = Precision("fp32")


def all_fused(network: LoweredModel, variant: int = 0) -> LoweredModel:
    return network.with_fused(dict.fromkeys(separable_operators(network.model), KernelChoice(variant)))


def fused_kernels(network: LoweredModel) -> list[Separable]:
    return [call.kernel for own in network.calls.values() for call in own if isinstance(call.kernel, Separable)]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_fused_kernels_compute_the_same_as_onnxruntime(precision: str) -> None:
    model = separables()
    network = all_fused(LoweredModel(model, Precision(precision)), 1)
    kernels = fused_kernels(network)
    assert len(kernels) == len(separable_operators(model)) == 3
    assert {kernel.variant for kernel in kernels} == {1}
    assert sum(len(own) for own in network.calls.values()) == 3  # and none for the sum
    inputs = random_inputs(model.graph.inputs)
    expected = expected_outputs(model, inputs)
    for schedule in (sequential(model.graph), random_schedule(model.graph, 1)):
        plan = lower(network, schedule)
        tolerance = 2e-2 if precision == "fp16" else 1e-5
        assert relative_error(interpreted(plan, inputs, seed=2), expected) < tolerance


def test_all_candidates_are_compiled_before_timing() -> None:
    """Every variant of every operator, so that a GPU's host uses all of its cores."""
    network = LoweredModel(separables(), FP32)
    prepared: list[LoweredModel] = []
    timed: list[tuple[object, ...]] = []

    def latency_us(timed_network: LoweredModel, names: Sequence[str]) -> float:
        assert timed_network in prepared
        timed.append((timed_network, *names))
        return 1.0

    fused_by_choice(network, Kept(), latency_us, prepared.append)
    assert prepared[0] is network
    assert len(prepared) == 8
    assert timed


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_randwire(precision: str) -> None:
    model = zoo_model("randwire")
    network = all_fused(LoweredModel(model, Precision(precision)))
    inputs = random_inputs(model.graph.inputs)
    plan = lower(network, random_schedule(model.graph, 5))
    assert len(fused_kernels(network)) == len(separable_operators(model))
    tolerance = 2e-2 if precision == "fp16" else 1e-4
    assert relative_error(interpreted(plan, inputs, seed=0), expected_outputs(model, inputs)) < tolerance


PLAIN = Convolution("x", np.ones((8, 1, 3, 3)), np.zeros(8), (1, 1), (1, 1, 1, 1), (1, 1), groups=8)
POINTWISE = Convolution("", np.ones((5, 8, 1, 1)), np.zeros(5), (1, 1), (0, 0, 0, 0), (1, 1))


@pytest.mark.parametrize(
    ("depthwise", "pointwise"),
    [
        (replace(PLAIN, groups=4, weight=np.ones((8, 2, 3, 3))), POINTWISE),
        (replace(PLAIN, weight=np.ones((16, 1, 3, 3))), replace(POINTWISE, weight=np.ones((5, 16, 1, 1)))),
        (replace(PLAIN, weight=np.ones((8, 1, 8, 8))), POINTWISE),
        (replace(PLAIN, pads=(1, -1, 1, 1)), POINTWISE),
        (replace(PLAIN, activation=RELU), POINTWISE),
        (PLAIN, replace(POINTWISE, weight=np.ones((5, 8, 3, 3)))),
        (PLAIN, replace(POINTWISE, strides=(1, 2))),
        (PLAIN, replace(POINTWISE, pads=(0, 0, 1, 0))),
        (PLAIN, replace(POINTWISE, groups=2, weight=np.ones((6, 4, 1, 1)))),
        (PLAIN, replace(POINTWISE, residual="x")),
    ],
)
def test_unsupported_convolutions_are_not_fused(depthwise: Convolution, pointwise: Convolution) -> None:
    builder = Builder.of(separables(), FP32)
    assert not lower_separable(builder, depthwise, pointwise, "a", variant=0)
    assert builder.calls == []
    assert lower_separable(builder, PLAIN, POINTWISE, "a", variant=0)
    assert len(builder.calls) == 1


def test_changing_one_choice_keeps_the_calls_and_weights_of_others() -> None:
    model = separables()
    network = LoweredModel(model, FP32)
    other = network.with_fused({"a": KernelChoice(0)})
    assert isinstance(other.calls["a"][-1].kernel, Separable)
    assert other.calls["b"] == network.calls["b"]
    assert other.with_fused({}).calls["a"][-1].kernel == network.calls["a"][-1].kernel
    assert all(other.builder.weights[name] is array for name, array in network.builder.weights.items())


def test_kernels_are_chosen_for_the_gpu_of_the_driver() -> None:
    small = Gpu(capability=90, processors=8)
    driver = HostDriver(gpu=small)
    backend = CudaBackend(separables(), driver, HostChoice(driver), FP32)
    assert backend._lowered.with_fused({"a": KernelChoice(0)}).gpu == small
    kernels = [call.kernel for call in backend._lowered.with_fused({"a": KernelChoice(0)}).calls["a"]]
    assert [kernel.gpu for kernel in kernels if isinstance(kernel, Separable)] == [small]


def takes(*latencies_us: float) -> tuple[OperatorLatency, list[tuple[str, int | None]]]:
    """A clock with these latencies of two kernels and of each variant; with a log of its calls."""
    asked: list[tuple[str, int | None]] = []

    def latency(network: LoweredModel, names: Sequence[str]) -> float:
        (name,) = names
        variant = network.fused.get(name, KernelChoice()).variant
        asked.append((name, variant))
        return latencies_us[0 if variant is None else variant + 1]

    return latency, asked


def variants(network: LoweredModel) -> set[int]:
    return {kernel.variant for kernel in fused_kernels(network)}


def test_the_fastest_choice_is_stored_and_each_kind_is_timed_once() -> None:
    network, kept = LoweredModel(separables(), FP32), Kept()
    latency, asked = takes(10, 8, 5, 7)
    found, chosen, _ = fused_by_choice(network, kept, latency)
    assert variants(found) == {1}
    assert len(fused_kernels(found)) == 3
    assert chosen == kept.known
    assert len(chosen) == 2
    assert len(asked) == 2 * 4 + 4  # the sum inside and outside
    again, same, _ = fused_by_choice(network, Kept(kept.known, times=False), latency)
    assert (again.fused, same) == (found.fused, chosen)
    assert len(asked) == 2 * 4 + 4


@pytest.mark.parametrize("variant", [None, 0, 2])
def test_a_sum_is_computed_in_the_other_place_where_that_is_faster(variant: int | None) -> None:
    network, kept, best = LoweredModel(separables(), FP32), Kept(), KernelChoice(variant, other_sum=True)

    def latency_us(timed: LoweredModel, names: Sequence[str]) -> float:
        return 5.0 if timed.fused.get(names[0]) == best else 10.0

    found, chosen, _ = fused_by_choice(network, kept, latency_us)
    assert list(found.fused.values()) == [best]
    (text,) = chosen.values()
    assert text == f"{'two kernels' if variant is None else f'one kernel, variant {variant}'}, other sum"
    last = separable_operators(network.model)[-1]
    sums = [AddN(RELU) in {call.kernel for call in each.calls[last]} for each in (network, found)]
    assert sums == [False, True]
    again, *_ = fused_by_choice(network, Kept(kept.known, times=False), latency_us)
    assert again.fused == found.fused


def test_two_kernels_stay_where_one_gains_nothing_or_fails() -> None:
    network = LoweredModel(separables(), FP32)
    for latencies in ((10, 9.9, 11, 12), (10, np.inf, np.inf, np.inf)):
        kept = Kept()
        found, chosen, _ = fused_by_choice(network, kept, takes(*latencies)[0])
        assert found is network
        assert chosen == {}
        assert set(kept.known.values()) == {"two kernels"}


def test_nothing_is_timed_if_timing_is_not_allowed() -> None:
    network = LoweredModel(separables(), FP32)
    latency, asked = takes(10, 1, 1, 1)
    found, *_ = fused_by_choice(network, Kept(times=False), latency)
    assert (found, asked) == (network, [])


def test_stored_choices_are_used_and_malformed_ones_are_ignored() -> None:
    network = LoweredModel(separables(), FP32)
    key = fusion_key(network, "a")
    assert key == fusion_key(network, "b") != fusion_key(network, separable_operators(network.model)[-1])
    for text, fused in (("one kernel, variant 2", {"a": 2, "b": 2}), ("one kernel, variant x", {}), ("", {})):
        found, *_ = fused_by_choice(network, Kept({key: text}, times=False), takes()[0])
        assert dict(found.fused) == {name: KernelChoice(variant) for name, variant in fused.items()}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_backend_times_both_kernels_and_a_schedule_keeps_its_choice(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaExecutor, "time_many", by_kernels)
    model, driver, kept = separables(), HostDriver(), Kept()
    opened = partial(CudaBackend, model, driver, HostChoice(driver), Precision(precision), layout=Layout.NHWC)
    backend = opened(choices=kept)
    compiled = backend.compile(sequential(model.graph))
    chosen = {key: text for key, text in compiled.cudnn_plans.items() if key.startswith("fused ")}
    assert chosen == kept.known
    assert set(chosen.values()) == {"one kernel, variant 0"}
    inputs = random_inputs(model.graph.inputs)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert relative_error(compiled.run(inputs), expected_outputs(model, inputs)) < tolerance
    pinned = opened(choices=Kept(chosen, times=False))
    assert pinned.compile(sequential(model.graph)).kernel_count == compiled.kernel_count
    assert opened().compile(sequential(model.graph)).kernel_count == compiled.kernel_count + 3


def by_kernels(self: CudaExecutor, repeats: int, copies: int) -> tuple[float, ...]:
    del copies
    return (10.0 * sum(map(len, self._plan.lanes)),) * repeats


@needs_compiler
def test_a_variant_that_breaks_memory_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def timed(self: CudaExecutor, repeats: int, copies: int) -> tuple[float, ...]:
        own = [kernel.variant for kernel in self._kernels if isinstance(kernel, Separable)]
        if own == [1]:
            raise DeviceLostError("an illegal address")
        return (5.0 if own == [2] else 10.0,) * repeats

    monkeypatch.setattr(CudaExecutor, "time_many", timed)
    model, driver, lost = separables(), HostDriver(), 0
    for _ in range(4):
        with ProfileDatabase(tmp_path / "p.db") as database:
            choices = StoredCudnnPlans(database, "gpu")
            try:
                backend = CudaBackend(model, driver, HostChoice(driver), FP32, choices=choices, layout=Layout.NHWC)
            except DeviceLostError:
                lost += 1
    assert lost == 3  # each of two kinds of operators, and one of them with a kernel for its sum
    assert set(backend._lowered.fused.values()) == {KernelChoice(2)}
    assert backend.notes[0].startswith("Kernels and layouts skipped because they crashed the GPU or the process")
    assert "3 (first: 'one kernel, variant 1')" in backend.notes[0]


@needs_compiler
def test_a_failing_kernel_is_no_candidate_and_a_lost_gpu_ends_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: CudaExecutor, repeats: int, copies: int) -> tuple[float, ...]:
        if any(isinstance(kernel, Separable) for kernel in self._kernels):
            raise error
        return (10.0,) * repeats

    monkeypatch.setattr(CudaExecutor, "time_many", fails)
    error: Exception = ExecutionError("no")
    model, driver, kept = separables(), HostDriver(), Kept()
    CudaBackend(model, driver, HostChoice(driver), FP32, choices=kept, layout=Layout.NHWC)
    assert set(kept.known.values()) == {"two kernels"}
    error = DeviceLostError("lost")
    with pytest.raises(DeviceLostError):
        CudaBackend(model, driver, HostChoice(driver), FP32, choices=Kept(), layout=Layout.NHWC)


def n_copied(network: LoweredModel) -> list[int]:
    """Number of tensors that each copy is of."""
    lowering = lower(network, sequential(network.model.graph))
    return [len(task.reads) for task in lowering.plan.tasks if isinstance(lowering.kernels[task.kernel], Copy)]


def of_concats(slices_us: float, copied_us: float) -> tuple[OperatorLatency, list[tuple[str, ...]]]:
    """A clock for the operators of a Concat; with a log of its calls."""
    asked: list[tuple[str, ...]] = []

    def latency(network: LoweredModel, names: Sequence[str]) -> float:
        asked.append(tuple(names))
        return copied_us if names[-1] in network.fused else slices_us

    return latency, asked


def test_operands_of_a_concat_are_copied_where_that_is_faster() -> None:
    """It is timed with the convolutions that write them, once for each kind, and the choice is kept."""
    network, kept = LoweredModel(fire(), FP32), Kept()
    latency, asked = of_concats(10, 9)
    found, chosen, keys = fused_by_choice(network, kept, latency)
    assert asked == [("f1", "f3", "fc")] * 2  # the other Concat is of the same kind
    assert (n_copied(network), n_copied(found)) == ([1, 1], [1, 2, 2, 1])  # of input and output, and of Concats
    assert chosen == kept.known == dict.fromkeys(keys, "one kernel, variant 0")
    again, same, _ = fused_by_choice(network, Kept(kept.known, times=False), latency)
    assert (again.fused, same, len(asked)) == (found.fused, chosen, 2)
    inputs = random_inputs(network.model.graph.inputs)
    for schedule in (greedy(network.model.graph), random_schedule(network.model.graph, 2)):
        outputs = interpreted(lower(found, schedule), inputs, seed=1)
        assert relative_error(outputs, expected_outputs(network.model, inputs)) < 1e-5


def test_slices_stay_where_copies_gain_nothing_or_nothing_may_be_timed() -> None:
    network = LoweredModel(fire(), FP32)
    for kept, latency in ((Kept(), of_concats(10, 9.9)[0]), (Kept(times=False), of_concats(10, 1)[0])):
        assert fused_by_choice(network, kept, latency)[:2] == (network, {})
        assert set(kept.known.values()) <= {"slices"}


def test_there_is_no_choice_where_slices_are_whole_tensors_or_cudnn_writes_none() -> None:
    latency, asked = of_concats(10, 1)
    network = LoweredModel(fire(), FP32, Layout.NCHW)
    assert fused_by_choice(network, Kept(), latency)[0] is network
    assert {network.fused.get(names[-1]) for names in asked} == {None}
    pools = loaded(
        proto_of(
            [make_node("MaxPool", ["x"], [name], kernel_shape=[size] * 2, pads=[size // 2] * 4)
             for name, size in (("a", 1), ("b", 3))] + [make_node("Concat", ["a", "b"], ["y"], axis=1)],
            {"x": (1, 8, 6, 6)}, ["y"],
        )
    )  # fmt: skip
    assert fused_by_choice(LoweredModel(pools, FP32), Kept(), never)[1:] == ({}, [])


def never(network: LoweredModel, names: Sequence[str]) -> float:
    raise AssertionError(f"{names} are timed")


def test_only_what_cudnn_accesses_is_copied() -> None:
    """Appending to a tensor that cuDNN does not read, as in DenseNet, costs a copy of the new channels alone."""
    nodes, weights = [make_node("MaxPool", ["x"], ["c0"], kernel_shape=[1, 1])], {}
    for k in range(3):
        weights[f"w{k}"] = weight(8, 8 + 8 * k, 1, 1)
        nodes += [make_node("MaxPool", [f"c{k}"], [f"p{k}"], kernel_shape=[3, 3], pads=[1] * 4)]
        nodes += [make_node("Conv", [f"p{k}", f"w{k}"], [f"d{k}"])]
        nodes += [make_node("Concat", [f"c{k}", f"d{k}"], [f"c{k + 1}"], axis=1)]
    model = loaded(proto_of([*nodes, make_node("Relu", ["c3"], ["y"])], {"x": (1, 8, 6, 6)}, ["y"], weights))
    network = LoweredModel(model, FP32).with_fused(dict.fromkeys(("c1", "c2", "c3"), KernelChoice(0)))
    views = network.placement.views
    assert [views[f"c{k}"].buffer for k in range(4)] == ["c3"] * 4
    assert [views[f"d{k}"].buffer for k in range(3)] == ["d0", "d1", "d2"]
    assert n_copied(network) == [1] * (3 + 2)  # of input and output


def test_an_operand_placed_in_another_concat_is_not_timed() -> None:
    """The copy would not save the slice. Both Concats are of one kind."""
    nodes = [make_node("Conv", ["x", "w"], [name]) for name in "abc"]
    nodes += [make_node("Concat", [*names], [names.upper()], axis=1) for names in ("ab", "bc")]
    nodes += [make_node("MaxPool", [name], [f"{name}p"], kernel_shape=[1, 1]) for name in ("AB", "BC")]
    weights = {"w": weight(8, 8, 1, 1)}
    model = loaded(proto_of(nodes, {"x": (1, 8, 6, 6)}, ["ABp", "BCp"], weights))
    latency, asked = of_concats(10, 1)
    fused_by_choice(LoweredModel(model, FP32), Kept(), latency)
    assert asked == [("a", "AB")] * 2


def is_copied(executor: CudaExecutor) -> bool:
    return any(len(task.writes) > 1 for task in executor._plan.tasks)


@needs_compiler
def test_a_copy_that_breaks_memory_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def timed(self: CudaExecutor, repeats: int, copies: int) -> tuple[float, ...]:
        if is_copied(self):
            raise DeviceLostError("an illegal address")
        return (10.0,) * repeats

    monkeypatch.setattr(CudaExecutor, "time_many", timed)
    driver, lost = HostDriver(), 0
    for _ in range(3):
        with ProfileDatabase(tmp_path / "p.db") as database:
            choices = StoredCudnnPlans(database, "gpu")
            try:
                backend = CudaBackend(fire(), driver, HostChoice(driver), FP32, choices=choices, layout=Layout.NHWC)
            except DeviceLostError:
                lost += 1
    assert lost == 1
    assert not backend._lowered.fused
    assert "1 (first: 'one kernel, variant 0')" in backend.notes[0]


@needs_compiler
def test_a_backend_copies_where_that_is_faster_and_a_schedule_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: CudaExecutor, repeats: int, copies: int) -> tuple[float, ...]:
        return (10.0 - is_copied(self),) * repeats

    monkeypatch.setattr(CudaExecutor, "time_many", timed)
    model, driver = fire(), HostDriver()
    opened = partial(CudaBackend, model, driver, HostChoice(driver), FP32, layout=Layout.NHWC)
    compiled = opened(choices=Kept()).compile(sequential(model.graph))
    chosen = {key: text for key, text in compiled.cudnn_plans.items() if key.startswith("fused ")}
    assert list(chosen.values()) == ["one kernel, variant 0"]
    pinned = opened(choices=Kept(chosen, times=False)).compile(sequential(model.graph))
    assert pinned.kernel_count == compiled.kernel_count == opened().compile(sequential(model.graph)).kernel_count + 2
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(pinned.run(inputs), expected_outputs(model, inputs)) < 1e-5
    assert driver.mistakes == []
