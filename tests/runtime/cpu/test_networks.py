"""Whole networks compute the same as plain onnxruntime, for any schedule and number of lanes."""

from __future__ import annotations

import pytest
from gpu_plans import merged_schedule
from lowering import baselines, check_everything, check_schedules, drawn, searched
from networks import zoo_model
from onnx import ModelProto, helper
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Strategy

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")


def separable_cell() -> ModelProto:
    """A small cell like those of NASNet: Relu-SepConv units, sums that fold into them, pools, a Concat."""
    nodes, weights = [], {}

    def separable(source: str, result: str, size: int) -> None:
        weights[f"{result}_d"], weights[f"{result}_p"] = weight(16, 1, size, size, seed=1), weight(16, 16, 1, 1, seed=2)
        nodes.append(helper.make_node("Relu", [source], [f"{result}_r"]))
        inputs = [f"{result}_r", f"{result}_d"]
        nodes.append(helper.make_node("Conv", inputs, [f"{result}_m"], group=16, pads=[size // 2] * 4))
        nodes.append(helper.make_node("Conv", [f"{result}_m", f"{result}_p"], [result]))

    separable("x", "a", 5)
    separable("x", "b", 3)
    nodes.append(helper.make_node("AveragePool", ["h"], ["p"], kernel_shape=[3, 3], pads=[1] * 4))
    nodes.append(helper.make_node("Add", ["a", "b"], ["s"]))
    separable("s", "c", 3)
    nodes.append(helper.make_node("Add", ["p", "h"], ["q"]))
    separable("q", "d", 7)
    nodes.append(helper.make_node("Add", ["c", "d"], ["e"]))
    nodes.append(helper.make_node("Concat", ["s", "e", "q", "h"], ["y"], axis=1))
    return proto_of(nodes, {"x": ("n", 16, 9, 9), "h": ("n", 16, 9, 9)}, ["y"], weights)


@pytest.mark.parametrize("batch", [1, 4])
def test_separable_cell(batch: int) -> None:
    check_everything(loaded(separable_cell(), batch_size=batch), lanes=(1, 2, 3, 4))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_small_networks_on_any_number_of_lanes(name: str, batch: int) -> None:
    model = zoo_model(name, batch)
    for lanes in (1, 2, 3, 4):
        with CpuBackend(model, lanes=lanes) as backend:
            check_schedules(model, backend, drawn(backend.graph, [lanes]))
    check_everything(model, lanes=(2,), seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "light_inception_v1"])
def test_networks_with_branches(name: str) -> None:
    check_everything(zoo_model(name), lanes=(2,), seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch"), [("squeezenet", 2), ("light_inception_v1", 2), ("googlenet", 1), ("googlenet", 2)]
)
@pytest.mark.parametrize("lanes", [3, 4])
def test_networks_with_branches_on_more_lanes_than_cores(name: str, batch: int, lanes: int) -> None:
    check_everything(zoo_model(name, batch), lanes=(lanes,), seeds=(3,))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["light_inception_v2", "resnet50"])
def test_medium_networks(name: str, batch: int) -> None:
    check_everything(zoo_model(name, batch), lanes=(2,), seeds=(4,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inception_v3", "randwire", "densenet121", "light_densenet121", "nasnet_a"])
def test_large_networks(name: str) -> None:
    model = zoo_model(name)
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, baselines(backend.graph))
        check_schedules(model, backend, drawn(backend.graph, [5]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inception_v3", "randwire"])
def test_large_networks_at_batch_2_on_3_lanes(name: str) -> None:
    model = zoo_model(name, 2)
    with CpuBackend(model, lanes=3) as backend:
        check_schedules(model, backend, drawn(backend.graph, [6]), seeds=(0,))


@pytest.mark.slow
def test_searched_schedules_of_inception_v3() -> None:
    model = zoo_model("inception_v3")
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, searched(backend.graph), seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_bvlc_alexnet", "vgg16"])
def test_networks_of_large_matrices(name: str) -> None:
    model = zoo_model(name)
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, drawn(backend.graph, [7]), seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_inception_v2", "inception_v3"])
def test_a_network_with_all_possible_merges(name: str) -> None:
    """Batch normalizations are folded by onnxruntime; layout changes that it adds after convolutions stay in place."""
    model = zoo_model(name)
    with CpuBackend(model, lanes=2) as backend:
        schedule = merged_schedule(backend.graph)
        merged = [stage for stage in schedule.stages if stage.strategy is Strategy.MERGE]
        assert len(merged) >= 10
        for stage in merged:
            compiled = backend.compile_stage(stage)
            assert compiled is not None, stage.operators
            compiled.executor.close()
        check_schedules(model, backend, iter([("merged", schedule)]), seeds=(0,))
