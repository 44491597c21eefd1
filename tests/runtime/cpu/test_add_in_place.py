"""A convolution adds to a tensor in place if the tensor has no later readers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import check_everything
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Stage, Strategy

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node


def model_of(
    layers: Sequence[str], *, channels: int = 48, size: int = 10, batch: int = 1, extra: Sequence[str] = ()
) -> Model:
    """Layers after a convolution of an image, each of which adds to the result of the one before it.

    Args:
        layers: `dense`, two convolutions before the sum; `depthwise`, a depthwise one that the sum is taken into;
            `late`, after which the tensor that is added to is read once more; `own`, which adds to what it reads.
        extra: results that are outputs too.
    """
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def conv(source: str, name: str, taken: int, kernel: int, group: int = 1) -> str:
        weights[f"{name}/w"] = weight(channels, taken // group, kernel, kernel, seed=len(nodes))
        nodes.append(node("Conv", [source, f"{name}/w"], [name], pads=[kernel // 2] * 4, group=group))
        return name

    def one(kind: str, sources: Sequence[str], name: str) -> str:
        nodes.append(node(kind, sources, [name]))
        return name

    last = one("Relu", [conv("x", "first", 3, 3)], "r")
    for number, kind in enumerate(layers):
        before, name = last, f"{kind}{number}"
        inner = before if kind == "own" else one("Relu", [conv(before, f"{name}/in", channels, 3)], f"{name}/relu")
        found = conv(inner, f"{name}/out", channels, 3, channels if kind == "depthwise" else 1)
        last = one("Relu", [one("Add", [found, before], f"{name}/sum")], name)
        if kind == "late":
            last = one("Mul", [last, before], f"{name}/late")
    conv(last, "y", channels, 1)
    return loaded(proto_of(nodes, {"x": (batch, 3, size, size)}, ["y", *extra], weights))


def in_place(model: Model, lanes: int = 1) -> int:
    """Number of tasks of the sequential schedule that add in place."""
    with CpuBackend(model, lanes=lanes) as backend:
        return sum(bool(task.in_place) for task in backend.lower(sequential(backend.graph)).plan.tasks)


@pytest.mark.parametrize(
    ("layers", "count"),
    [(["dense"], 1), (["dense", "dense", "dense"], 3), (["depthwise"], 1), (["late"], 0), (["own"], 0)],
)
def test_only_tensors_without_later_readers_are_added_to_in_place(layers: Sequence[str], count: int) -> None:
    model = model_of(layers)
    assert in_place(model) == count
    check_everything(model, lanes=(1, 2), seeds=(0,))


def test_outputs_keep_their_values() -> None:
    model = model_of(["dense", "dense"], extra=["dense0"])
    assert in_place(model) == 1
    check_everything(model, seeds=(0,))


def test_stage_alone_adds_in_place_to_its_input() -> None:
    with CpuBackend(model_of(["dense"]), lanes=2) as backend:
        name = next(name for name, nodes in backend.coarse.nodes.items() if _adds(backend, nodes))
        for strategy in (Strategy.CONCURRENT, Strategy.SESSION):
            stage = backend.compile_stage(Stage(strategy, ((name,),)))
            assert stage is not None
            assert min(stage.time(3)) > 0


def _adds(backend: CpuBackend, nodes: Sequence[int]) -> bool:
    return any(len(backend.kernels.nodes[index].input) > 3 for index in nodes)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    layers=st.lists(st.sampled_from(["dense", "depthwise", "late", "own"]), min_size=1, max_size=4),
    channels=st.sampled_from([16, 40, 64]), batch=st.integers(1, 2), lanes=st.integers(1, 3),
)  # fmt: skip
def test_any_chain_of_sums(layers: Sequence[str], channels: int, batch: int, lanes: int) -> None:
    check_everything(model_of(layers, channels=channels, batch=batch, size=6), lanes=(lanes,), seeds=(0,))


def test_an_in_place_sum_is_fresh_for_its_reader_although_its_buffer_was_read_before() -> None:
    with CpuBackend(model_of(["dense", "dense"]), lanes=2) as backend:
        assert in_place(model_of(["dense", "dense"])) == 2
        fresh_nbytes = {}
        for stage in sequential(backend.graph).stages:
            compiled = backend.compile_stage(stage)
            assert compiled is not None
            fresh_nbytes[stage.operators[0]] = sum(
                end - begin for each in compiled.fresh.values() for begin, end in each
            )
        whole = 4 * 48 * 10 * 10
        assert [nbytes for name, nbytes in fresh_nbytes.items() if name.endswith("relu")] == [whole, whole]
