"""The analytic model is fitted to a GPU from kernels measured on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from math import prod
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iosched.profiler.devices.analytic.constants import KERNELS, NODE_US, MeasuredFractions, measured_card
from iosched.profiler.devices.analytic.kernels import Kernel, Product, kernels_of
from iosched.profiler.devices.gpus import gpu_named, known_gpus
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference


@pytest.fixture
def refit(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_refit")


@pytest.fixture
def shapes(refit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All kernels, with those of two networks of the zoo."""
    monkeypatch.setattr(refit, "ZOO", ("squeezenet", "bert_mini"))
    found: list[str] = refit.shapes()
    return found


def test_there_are_enough_kernels_of_every_kind_and_they_differ(refit: ModuleType, shapes: list[str]) -> None:
    assert len(set(shapes)) == len(shapes) == sum(refit.COUNTS.values())
    assert 2 * len(shapes) >= 1.2 * refit.LEAST >= 240, "in two precisions, and some may fail"
    assert shapes == refit.shapes()
    largest_l2 = max(spec.l2_nbytes for spec in known_gpus())
    large = [name for name in shapes if name.startswith("add") and 12 * prod(map(int, name.split()[1:])) > largest_l2]
    assert len(large) > 5, "the memory's bandwidth is fitted to what no cache holds"
    assert {"linear 128 256 1024", "conv 1 512 1000 13 13 1 1 0 0 1"} <= set(shapes)


def test_each_kernel_is_one_operator_of_the_measured_model(refit: ModuleType, shapes: list[str]) -> None:
    names = [next(name for name in shapes if name.startswith(kind)) for kind in refit.COUNTS]
    model = refit.model_of(names)
    assert {operator.name for operator in model.graph.operators} == set(names)
    for name in names:
        (kernel,) = kernels_of(model.graph, model.graph.by_name[name])
        assert refit._kernel(asdict(kernel)) == kernel
        kind, *sizes = name.split()
        if kind == "conv":
            assert isinstance(kernel, Product)
            assert kernel.window is not None
            assert kernel.columns == int(sizes[2])


def test_convolutions_of_the_zoo_keep_their_output_shapes(refit: ModuleType) -> None:
    """Also with a stride of two, and with a kernel that is not square."""
    names = ["conv 1 3 8 9 9 3 3 0 0 2", "conv 1 4 8 7 7 1 7 0 3 1"]
    model = refit.model_of(names)
    with Reference(model) as reference:
        found = reference.run(random_inputs(model.graph.inputs))
    assert [found[name].shape for name in names] == [(1, 8, 4, 4), (1, 8, 7, 7)]


@pytest.mark.parametrize("key", ["v100", "t4", "a100", "l4", "h100", "b200"])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clock=st.floats(0.85, 1.1), dram=st.floats(0.6, 0.98), seed=st.integers(0, 9))
def test_the_constants_behind_the_latencies_are_recovered(
    script: Callable[[str], ModuleType], key: str, clock: float, dram: float, seed: int
) -> None:
    refit, kernels, measured = (script(name) for name in ("gpu_refit", "kernels", "measured"))
    spec = gpu_named(key)
    assert spec is not None
    card, truth = measured_card(key), MeasuredFractions(clock, dram)
    rng, found = np.random.default_rng(seed), []
    for precision in ("fp32", "fp16"):
        names = [name for kind in refit.COUNTS for name in (refit._drawn(kind, rng) for _ in range(40))]
        rows = {name: {"us": 1.0, "kernel": asdict(_kernel(refit, measured, name))} for name in names}
        found.append({"precision": precision, "measured": rows})
    rows = refit.rows_of(found, spec)
    us = kernels.predict(rows, KERNELS, {card: truth}).predicted_us * rng.lognormal(0.0, 0.05, len(rows))
    fit = refit.fitted([replace(row, measured_us=float(each)) for row, each in zip(rows, us, strict=True)], spec)
    assert fit["constants"]["after"]["clock"] == pytest.approx(clock, rel=0.06)
    assert fit["constants"]["after"]["dram"] == pytest.approx(dram, rel=0.06)
    assert fit["mean_error"]["all"]["after"] < 0.07
    assert fit["mean_error"]["all"]["kernels"] == fit["held_out"] > 60


def _kernel(refit: ModuleType, measured: ModuleType, name: str) -> Kernel:
    """The input of the analytic model, without an ONNX model of large weights."""
    kind, *words = name.split()
    sizes = [int(word) for word in words]
    if kind == "conv":
        images, channels, filters, height, width, tap_h, tap_w, pad_h, pad_w, stride = sizes
        window = (tap_h, tap_w), (pad_h, pad_w), (stride, stride)
        return measured.convolution(images, channels, filters, (height, width), *window)
    if kind in ("add", "relu"):
        return refit.Stream(4 * sizes[0] * sizes[1] * (3 if kind == "add" else 2))
    rows, inner, columns = sizes[-3:]
    return measured.product(rows, columns, inner, sizes[0] if kind == "bmm" else 1)


def test_node_overhead_is_subtracted_from_kernel_latencies(refit: ModuleType) -> None:
    spec = gpu_named("h100")
    kernel = asdict(refit.Stream(1024))
    rows = {"add 4 4": {"us": 10.0, "kernel": kernel}, "relu 4 4": {"us": 1.2, "kernel": kernel}}
    rows["relu 8 8"] = {"failed": "why"}
    found = refit.rows_of([{"precision": "fp16", "measured": rows}], spec)
    assert [row.measured_us for row in found] == [10.0 - NODE_US, 0.6]
