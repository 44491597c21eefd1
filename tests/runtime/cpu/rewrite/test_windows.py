"""Pad and Slice of rows and columns move into their readers, with equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import baselines, check_schedules
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.editable_graph import EditableGraph
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.rewrite.windows import absorb_windows

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
CHANNELS, SIZE = 20, 7


def model_of(
    nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray], outputs: Sequence[str] = ("y",), batch: int = 1
) -> Model:
    """`nodes` read the image i, of 20 channels and 7 x 7, which holds negative numbers too."""
    before = node("Conv", ["x", "first"], ["i"])
    around = {"first": weight(CHANNELS, 3, 1, 1), **weights}
    return loaded(proto_of([before, *nodes], {"x": (batch, 3, SIZE, SIZE)}, outputs, around))


def kinds(model: Model) -> Counter[str]:
    """Operators that are left besides the first convolution; the model, run in that form, computes the same."""
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, baselines(backend.graph))
    graph = EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    absorb_windows(graph)
    graph.drop_unread()
    return Counter(made.op_type for made in graph.nodes[1:])


def pads(*edges: int) -> np.ndarray:
    return np.array([0, 0, *edges[:2], 0, 0, *edges[2:]])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 0, 0, 2]}, {"auto_pad": "VALID"}, {"strides": [2, 2]}])
def test_a_pad_moves_into_all_convolutions_that_read_it(attributes: dict[str, object], batch: int) -> None:
    nodes = [
        node("Pad", ["i", "p"], ["q"]),
        node("Conv", ["q", "w"], ["a"], **attributes),
        node("Conv", ["q", "v"], ["b"], group=CHANNELS, **attributes),
        node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    weights = {"p": pads(0, 1, 2, 1), "w": weight(8, CHANNELS, 5, 5), "v": weight(CHANNELS, 1, 5, 5)}
    assert kinds(model_of(nodes, weights, batch=batch)) == {"Conv": 2, "Concat": 1}


@pytest.mark.parametrize(
    ("attributes", "goes"),
    [
        ({}, True), ({"count_include_pad": 1, "pads": [1, 0, 0, 1]}, True), ({"pads": [1, 0, 0, 1]}, False),
        ({"ceil_mode": 1}, False), ({"auto_pad": "SAME_UPPER"}, False), ({"strides": [2, 1]}, True),
    ],
)  # fmt: skip
def test_pad_moves_into_an_average_that_counts_its_zeros(attributes: dict[str, object], goes: bool) -> None:
    nodes = [node("Pad", ["i", "p"], ["q"]), node("AveragePool", ["q"], ["y"], kernel_shape=[3, 3], **attributes)]
    found = kinds(model_of(nodes, {"p": pads(1, 0, 1, 1)}))
    assert found["Pad"] == (0 if goes else 1)


def test_a_pad_read_by_a_max_pool_stays_for_all_readers() -> None:
    """Zeros change the maximum of negative numbers; a Pad read by the max pool alone is fused by onnxruntime."""
    nodes = [
        node("Pad", ["i", "p"], ["q"]),
        node("MaxPool", ["q"], ["a"], kernel_shape=[3, 3]),
        node("AveragePool", ["q"], ["b"], kernel_shape=[3, 3]),
        node("Add", ["a", "b"], ["y"]),
    ]
    assert kinds(model_of(nodes, {"p": pads(1, 1, 1, 1)})) == {"Pad": 1, "MaxPool": 1, "AveragePool": 1, "Add": 1}


@pytest.mark.parametrize(
    ("value", "mode", "edges"),
    [(1.0, "constant", (1, 1, 1, 1)), (None, "edge", (1, 1, 1, 1)), (None, "constant", (3, 1, 1, 1)),
     (None, "constant", (-1, 1, 1, 1))],
)  # fmt: skip
def test_other_pads_stay(value: float | None, mode: str, edges: tuple[int, ...]) -> None:
    """Pads of ones, of edge pixels, as wide as the kernel, and negative ones."""
    weights = {"p": pads(*edges), "w": weight(8, CHANNELS, 3, 3)}
    if value is not None:
        weights["value"] = np.float32(value).reshape(())
    nodes = [
        node("Pad", ["i", *list(weights)[:1], *list(weights)[2:]], ["q"], mode=mode),
        node("Conv", ["q", "w"], ["y"]),
    ]
    assert kinds(model_of(nodes, weights))["Pad"] == 1


def test_a_pad_of_channels_stays() -> None:
    weights = {"p": np.array([0, 1, 0, 0, 0, 0, 0, 0]), "w": weight(8, CHANNELS + 1, 3, 3)}
    assert kinds(model_of([node("Pad", ["i", "p"], ["q"]), node("Conv", ["q", "w"], ["y"])], weights))["Pad"] == 1


def test_a_padded_image_that_is_a_graph_output_stays() -> None:
    nodes = [node("Pad", ["i", "p"], ["q"]), node("Conv", ["q", "w"], ["y"])]
    model = model_of(nodes, {"p": pads(1, 1, 1, 1), "w": weight(8, CHANNELS, 3, 3)}, outputs=("y", "q"))
    assert kinds(model) == {"Pad": 1, "Conv": 1}


def sliced(starts: Sequence[int], ends: Sequence[int], axes: Sequence[int]) -> dict[str, np.ndarray]:
    return {"b": np.array(starts), "e": np.array(ends), "a": np.array(axes)}


@pytest.mark.parametrize("batch", [1, 2])
def test_a_pad_and_a_slice_become_one_pad(batch: int) -> None:
    """As exported models write it: a Pad at the end, and a Slice of all axes that drops the first row and column."""
    weights = {"p": pads(0, 0, 1, 1), **sliced([0, 0, 1, 1], [batch, CHANNELS, 99, 99], [0, 1, 2, 3])}
    nodes = [
        node("Pad", ["i", "p"], ["q"]),
        node("Slice", ["q", "b", "e", "a"], ["s"]),
        node("AveragePool", ["s"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    assert kinds(model_of(nodes, weights, batch=batch)) == {"Pad": 1, "AveragePool": 1}


@pytest.mark.parametrize(
    "part", [sliced([0], [5], [1]), {**sliced([0], [9], [2]), "t": np.array([2])}, sliced([8], [9], [2])]
)
def test_other_slices_stay(part: dict[str, np.ndarray]) -> None:
    """Slices of channels, of every second row, and of padding only."""
    nodes = [node("Pad", ["i", "p"], ["q"]), node("Slice", ["q", *part], ["y"])]
    assert kinds(model_of(nodes, {"p": pads(0, 0, 2, 1), **part}))["Slice"] == 1


AMOUNT = st.integers(0, 2)


@given(
    edges=st.tuples(AMOUNT, AMOUNT, AMOUNT, AMOUNT), starts=st.tuples(AMOUNT, AMOUNT), less=st.tuples(AMOUNT, AMOUNT),
    kernel=st.integers(1, 3), reader=st.sampled_from(["Conv", "depthwise", "AveragePool"]), cut=st.booleans(),
    batch=st.integers(1, 2),
)  # fmt: skip
def test_any_pad_and_slice(
    edges: tuple[int, ...],
    starts: tuple[int, int],
    less: tuple[int, int],
    kernel: int,
    reader: str,
    cut: bool,
    batch: int,
) -> None:
    """Averages are larger than the padding: onnxruntime 1.31 does not run smaller ones."""
    ends = [SIZE + edges[axis] + edges[axis + 2] - less[axis] for axis in range(2)]
    weights = {"p": pads(*edges), **sliced(starts, ends, [2, -1])}
    nodes = [node("Pad", ["i", "p"], ["q"])]
    if cut:
        nodes.append(node("Slice", ["q", "b", "e", "a"], ["s"]))
    last = nodes[-1].output[0]
    if reader == "AveragePool":
        nodes.append(node(reader, [last], ["y"], kernel_shape=[min(kernel, 2) + 2] * 2))
    else:
        group = CHANNELS if reader == "depthwise" else 1
        weights["w"] = weight(CHANNELS, CHANNELS // group, kernel, kernel)
        nodes.append(node("Conv", [last, "w"], ["y"], group=group))
    kinds(model_of(nodes, weights, batch=batch))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("edges", "strides", "left"),
    [
        ((-1, -1, 0, 0), [2, 2], {"Slice": 1}), ((-1, -1, 1, 1), [2, 2], {"Slice": 1, "Pad": 1}),
        ((-1, 0, 2, 0), [2, 3], {"Slice": 1, "Pad": 1}), ((0, -2, -1, 0), [2, 1], {"Slice": 1}),
        ((1, -1, 1, 1), [2, 2], {"Pad": 1, "AveragePool": 1}), ((-1, -1, 1, 1), [1, 1], {"Pad": 1, "AveragePool": 1}),
    ],
)  # fmt: skip
def test_every_other_pixel_of_a_shifted_image_is_a_slice(
    edges: tuple[int, ...], strides: list[int], left: dict[str, int], batch: int
) -> None:
    pool = node("AveragePool", ["q"], ["y"], kernel_shape=[1, 1], strides=strides)
    assert kinds(model_of([node("Pad", ["i", "p"], ["q"]), pool], {"p": pads(*edges)}, batch=batch)) == left


@pytest.mark.parametrize("outputs", [["y", "z"], ["y", "q"]])
def test_a_shifted_image_with_other_uses_stays(outputs: list[str]) -> None:
    nodes = [
        node("Pad", ["i", "p"], ["q"]),
        node("AveragePool", ["q"], ["y"], kernel_shape=[1, 1], strides=[2, 2]),
        *([node("Relu", ["q"], ["z"])] if "z" in outputs else []),
    ]
    found = kinds(model_of(nodes, {"p": pads(-1, -1, 1, 1)}, outputs))
    assert (found["Pad"], found["AveragePool"], found["Slice"]) == (1, 1, 0)


@pytest.mark.parametrize("attributes", [{"pads": [0, 0, 0, 0]}, {"auto_pad": "VALID"}])
def test_other_forms_of_pools_of_single_pixels_compute_the_same(attributes: dict[str, object]) -> None:
    pool = node("AveragePool", ["q"], ["y"], kernel_shape=[1, 1], strides=[2, 2], **attributes)
    kinds(model_of([node("Pad", ["i", "p"], ["q"]), pool], {"p": pads(-1, -1, 2, 2)}))
