"""The first operators of a network are divided by rows of the image, with equal results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import baselines, check_everything, check_schedules, drawn
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cpu import shared_rows
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.calls import stage_calls
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.optimized import _channel_block
from iosched.runtime.cpu.placement import place_tensors
from iosched.runtime.cpu.shared_rows import RowPlan
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")


class Net:
    """A network, node by node, after an image whose channels may come last."""

    def __init__(self, size: int, *, channels_last: bool = False) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.image = (1, size, size, 3) if channels_last else (1, 3, size, size)
        self.last, self.channels = "x", 3
        if channels_last:
            self.add("Transpose", perm=[0, 3, 1, 2])

    def add(self, kind: str, *more: str, **attributes: object) -> Net:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.last, *more], [name], name=name, **attributes))
        self.last = name
        return self

    def conv(self, results: int, kernel: int, *, group: int = 1, **attributes: object) -> Net:
        name = f"w{len(self.nodes)}"
        self.weights[name] = weight(results, self.channels // group, kernel, kernel, seed=len(self.nodes))
        self.weights[f"{name}/b"] = weight(results, seed=len(self.nodes))
        self.channels = results
        return self.add("Conv", name, f"{name}/b", group=group, **attributes)

    def depthwise(self, kernel: int, **attributes: object) -> Net:
        return self.conv(self.channels, kernel, group=self.channels, **attributes)

    def model(self, opset: int = 17) -> Model:
        """With a branch after it, so that the trunk ends."""
        trunk, channels = self.last, self.channels
        self.conv(32, 1)
        left, self.last, self.channels = self.last, trunk, channels
        self.conv(32, 1).add("Add", left).add("Relu")
        return loaded(proto_of(self.nodes, {"x": self.image}, [self.last], self.weights, opset=opset))


def mobile(size: int = 48) -> Net:
    """The first operators of a MobileNet, from channels last: narrow projections, nine blocks, sums."""
    net = Net(size, channels_last=True)
    net.conv(32, 3, strides=[2, 2], pads=[0, 0, 1, 1]).add("Relu")
    net.depthwise(3, pads=[1] * 4).add("Relu").conv(16, 1)
    for stride in (2, 1):
        before = net.last
        net.conv(144, 1).add("Relu").depthwise(3, strides=[stride] * 2, pads=[1] * 4).add("Relu").conv(32, 1)
        if stride == 1:
            net.add("Add", before)
    return net


def _length(_: KernelGraph, plan: RowPlan, __: int) -> float:
    return 100.0 * len(plan.nodes)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divides as many nodes by rows as possible, at any cost."""
    monkeypatch.setattr(shared_rows, "_gain_us", _length)


def check(model: Model, lanes: int) -> int:
    """Number of replaced nodes; every schedule computes the same as plain onnxruntime."""
    with CpuBackend(model, lanes=lanes) as backend:
        check_schedules(model, backend, iter([*baselines(backend.graph), *drawn(backend.graph, [0])]))
        return len(backend.kernels.rows.whole)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_blocks_of_a_mobile_network(lanes: int) -> None:
    assert check(mobile().model(), lanes) == 10


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pads", [0, 1])
def test_pools(kind: str, pads: int) -> None:
    net = Net(33).conv(32, 3, strides=[2, 2]).add("Relu").conv(64, 3, pads=[1] * 4).add("Relu")
    assert check(net.add(kind, kernel_shape=[3, 3], strides=[2, 2], pads=[pads] * 4).model(), 2) == 3


def test_an_expensive_stem_is_divided_by_rows() -> None:
    """Two blocks of results, then four: with AVX-512 these are 32 and 64 channels, as in Inception V3."""
    narrow, wide = 2 * _channel_block(), 4 * _channel_block()
    net = Net(149).conv(narrow, 3, strides=[2, 2]).add("Relu").conv(narrow, 3).add("Relu").conv(wide, 3).add("Relu")
    assert check(net.model(), 2) == 3


def test_a_cheap_stem_is_not_divided() -> None:
    assert check(Net(24).conv(64, 3).add("Relu").model(), 2) == 0


@pytest.mark.usefixtures("always")
def test_nothing_is_divided_on_one_core_or_with_several_images() -> None:
    assert check(mobile().model(), 1) == 0
    net = mobile()
    net.image = (2, *net.image[1:])
    assert check(net.model(), 2) == 0


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("opset", "count"), [(9, 0), (10, 1)])
def test_nothing_is_divided_in_opsets_whose_slice_has_no_operands(opset: int, count: int) -> None:
    assert check(Net(24).conv(32, 3, pads=[1] * 4).add("Relu").model(opset), 2) == count


@pytest.mark.usefixtures("always")
def test_a_graph_output_ends_the_divided_run() -> None:
    net = Net(24).conv(32, 3, pads=[1] * 4).add("Relu")
    wanted = net.last
    net.conv(32, 1).model()
    model = loaded(proto_of(net.nodes, {"x": net.image}, [wanted, net.last], net.weights))
    assert check(model, 2) == 1


@pytest.mark.usefixtures("always")
def test_each_core_keeps_its_rows() -> None:
    with CpuBackend(mobile().model(), lanes=2) as backend:
        kernels = backend.kernels
        assert kernels.rows.lane_of
        calls = stage_calls(kernels, place_tensors(kernels), [range(len(kernels.nodes))], [(0, 1)], 0)
        own = {name: call.lane for call in calls for name, _ in call.writes if name in kernels.rows.lane_of}
        assert own == {name: lane for name, lane in kernels.rows.lane_of.items() if name in own}
        assert set(own.values()) == {0, 1}
        single = stage_calls(kernels, place_tensors(kernels), [range(len(kernels.nodes))], [(0,)], 0)
        assert {call.lane for call in single} == {0}


@pytest.mark.usefixtures("always")
def test_a_session_of_the_whole_model_is_not_divided_by_rows() -> None:
    model = mobile().model()
    with CpuBackend(model, lanes=2) as backend:
        names = tuple(operator.name for operator in backend.graph.operators)
        whole = Schedule((Block(0, (Stage(Strategy.SESSION, (names,)),)),))
        check_schedules(model, backend, iter([("whole", whole), ("sequential", sequential(backend.graph))]))
        lowered = backend.lower(whole)
        session = onnx.ModelProto.FromString(lowered.kernels[0].model)  # type: ignore[union-attr]
        assert not any("/rows" in name for node in session.graph.node for name in node.output)


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_every_schedule() -> None:
    check_everything(mobile(24).model(), lanes=(1, 2, 3))


@pytest.mark.slow
@given(
    lanes=st.integers(2, 4), size=st.integers(9, 40), channels_last=st.booleans(),
    layers=st.lists(
        st.tuples(
            st.sampled_from(["conv", "depthwise", "pool", "sum", "relu"]), st.sampled_from([16, 32, 48, 80]),
            st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2]), st.integers(0, 2), st.integers(0, 2),
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_any_trunk(
    lanes: int, size: int, channels_last: bool, layers: Sequence[tuple[str, int, int, int, int, int]]
) -> None:
    net = Net(size, channels_last=channels_last).conv(32, 3, pads=[1] * 4)
    for kind, results, kernel, stride, above, below in layers:
        extent = min(kernel, size)
        pads = [min(above, extent - 1), 0, min(below, extent - 1), extent // 2]
        window = {"strides": [stride, 1], "pads": pads}
        if kind == "conv":
            net.conv(results, extent, **window)
        elif kind == "depthwise":
            net.depthwise(extent, **window)
        elif kind == "pool":
            net.add("MaxPool", kernel_shape=[extent, extent], **window)
        elif kind == "sum":
            before = net.last
            net.conv(net.channels, 3, pads=[1] * 4).add("Relu").conv(net.channels, 1).add("Add", before)
        else:
            net.add("Relu")
        if kind in ("conv", "depthwise", "pool"):
            size = min(size + pads[3] - extent + 1, (size + pads[0] + pads[2] - extent) // stride + 1)
            if size < 5:
                break
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_rows, "_gain_us", _length)
        check(net.model(), lanes)
