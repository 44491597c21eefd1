"""The analytic model of GPUs: it meets the requirements of the search, and behaves as GPUs do."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from by_definition import best_us, groups_of
from hypothesis import given
from hypothesis import strategies as st
from lowering import random_lanes
from networks import zoo_model

from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.load import load_model
from iosched.models.zoo.network import Network
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import (
    LAUNCH_CONSTANTS,
    LEAST_NODE_US,
    MOST_NODE_US,
    NODE_US,
    STREAM_LAUNCHES,
    LaunchConstants,
    in_graph,
)
from iosched.profiler.devices.analytic.kernels import Product, Stream, kernels_of
from iosched.profiler.devices.gpus import GpuSpec, gpu_keys, gpu_named
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.cost import AdditiveGroups, CostModel, OperatorKeys
from iosched.scheduler.effort import Effort
from iosched.scheduler.lattice import build, relation
from iosched.scheduler.paths import bound_us
from iosched.scheduler.precision import PRECISIONS, PrecisionName
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import can_merge

CONCURRENT, MERGE = Strategy.CONCURRENT, Strategy.MERGE


def gpu(name: str) -> GpuSpec:
    found = gpu_named(name)
    assert found is not None
    return found


def conv(name: str, source: TensorSpec, channels: int, kernel: int = 3, group: int = 1) -> tuple[Operator, TensorSpec]:
    """A convolution that keeps the size of its input, and its result."""
    assert source.shape is not None
    batch, in_channels, *size = source.shape
    result = TensorSpec(name, "float32", (batch, channels, *size))
    weights = TensorSpec(f"{name}_w", "float32", (channels, in_channels // group, kernel, kernel))
    attributes = (
        ("activation", "Relu"), ("dilations", (1, 1)), ("group", group), ("in_channels", in_channels),
        ("kernel_shape", (kernel, kernel)), ("out_channels", channels), ("pads", (kernel // 2,) * 4),
        ("strides", (1, 1)),
    )  # fmt: skip
    flops = 2 * batch * channels * size[0] * size[1] * in_channels // group * kernel**2
    nbytes = source.nbytes + result.nbytes + weights.nbytes
    made = Operator(name, "Conv", (name,), (source.name,), (name,), attributes, (weights,), flops, nbytes)
    return made, result


def branches(
    n: int, channels: int = 32, size: int = 14, batch: int = 1, group: int = 1, kernel: int = 3
) -> ComputationGraph:
    """`n` convolutions of the graph's input, "0" to "n - 1"."""
    source = TensorSpec("x", "float32", (batch, 64, size, size))
    made = [conv(str(index), source, channels, kernel, group) for index in range(n)]
    operators, results = zip(*made, strict=True)
    return ComputationGraph("branches", (source,), tuple(map(str, range(n))), operators, results)


@st.composite
def small_graphs(draw: st.DrawFn) -> ComputationGraph:
    """Graphs of convolutions of about the same size, and of sums of earlier results."""
    channels, size = 32, draw(st.sampled_from([4, 28, 112]))
    source = TensorSpec("x", "float32", (1, channels, size, size))
    known, operators = [source], []
    for index in range(draw(st.integers(1, 6))):
        if len(known) > 2 and draw(st.booleans()):
            terms = draw(st.lists(st.sampled_from(known), min_size=2, max_size=3, unique=True))
            result = TensorSpec(str(index), "float32", source.shape)
            names = tuple(spec.name for spec in terms)
            nbytes = result.nbytes * (len(terms) + 1)
            operators.append(Operator(str(index), "Add", (str(index),), names, (str(index),), nbytes=nbytes))
        else:
            kernel = draw(st.sampled_from([1, 3]))
            operator, result = conv(str(index), draw(st.sampled_from(known)), channels, kernel)
            operators.append(operator)
        known.append(result)
    outputs = tuple(spec.name for spec in known[1:])
    return ComputationGraph("small", (source,), outputs, tuple(operators), tuple(known[1:]))


def side_by_side(*names: str) -> Stage:
    return Stage(CONCURRENT, tuple((name,) for name in names))


def network(name: str, batch: int = 1) -> ComputationGraph:
    return zoo_model(name, batch).graph


def test_it_is_a_cost_model_with_keys() -> None:
    cost: CostModel = AnalyticCost(branches(2), gpu("v100"))

    assert isinstance(cost, OperatorKeys)


@given(small_graphs(), st.sampled_from(gpu_keys()), st.sampled_from(PRECISIONS))
def test_no_stage_undercuts_its_bound_or_its_groups(
    graph: ComputationGraph, name: str, precision: PrecisionName
) -> None:
    cost = AnalyticCost(graph, gpu(name), precision)

    for size in (1, 2, 3):
        for names in combinations([operator.name for operator in graph.operators], size):
            stage = side_by_side(*names)
            latency = cost.stage_latency_us(stage)
            assert latency >= cost.lower_bound_us(stage)
            busy = sum(cost.busy_us(side_by_side(one)) for one in names)
            assert latency >= cost.busy_us(stage) == pytest.approx(busy)
            assert all(latency >= cost.stage_latency_us(side_by_side(one)) for one in names)
            group = Stage(CONCURRENT, (names,))
            assert cost.stage_latency_us(group) == pytest.approx(cost.lower_bound_us(group))
            if size > 1 and all(graph.by_name[one].type == "Conv" for one in names):
                merged = Stage(MERGE, stage.groups)
                assert cost.stage_latency_us(merged) >= max(cost.lower_bound_us(merged), cost.busy_us(merged))


@given(
    small_graphs(),
    st.sampled_from(gpu_keys()),
    st.sampled_from(list(LAUNCH_CONSTANTS.values())),
    st.sampled_from([Pruning(3, 8), Pruning(None, None)]),
)
def test_bounds_of_a_block_and_its_stages_are_exact(
    graph: ComputationGraph, name: str, launches: LaunchConstants, pruning: Pruning
) -> None:
    """Each bound equals the latency of its stage, and that of the block the latency of its best schedule."""
    cost = AnalyticCost(graph, gpu(name), launches=launches)
    names = tuple(graph.by_name)
    lattice = build(relation(graph, names), pruning)

    def stage_us(operators: frozenset[str]) -> float:
        groups = sorted(sorted(group, key=names.index) for group in groups_of(graph, operators))
        return cost.stage_latency_us(Stage(CONCURRENT, tuple(map(tuple, groups))))

    bounds = cost.concurrent_bounds_us(names, lattice)

    for mask, bound in zip(lattice.stages.tolist(), bounds.tolist(), strict=True):
        assert bound == stage_us(frozenset(name for index, name in enumerate(names) if mask >> index & 1))
    assert bound_us(lattice, bounds) == pytest.approx(best_us(graph, stage_us, pruning.r, pruning.s), rel=1e-12)


def test_a_session_runs_its_operators_in_turn() -> None:
    cost = AnalyticCost(branches(3), gpu("v100"))
    session = replace(side_by_side("0", "1", "2"), strategy=Strategy.SESSION)

    assert cost.stage_latency_us(session) == cost.stage_latency_us(Stage(CONCURRENT, (("0", "1", "2"),)))
    assert cost.stage_latency_us(session) > cost.stage_latency_us(side_by_side("0", "1", "2"))
    assert cost.lower_bound_us(session) <= cost.stage_latency_us(session)


@given(small_graphs(), st.sampled_from(gpu_keys()), st.integers(0, 99))
def test_lanes_take_as_long_as_the_longest_path_through_them(graph: ComputationGraph, name: str, seed: int) -> None:
    """By brute force over all paths along edges and lanes; without edges between them, lanes are groups."""
    cost = AnalyticCost(graph, gpu(name))
    lanes = Stage(Strategy.LANES, random_lanes(graph, list(graph.by_name), random.Random(seed)))
    latency_us = cost.stage_latency_us(lanes)
    if len(lanes.groups) == 1:
        assert latency_us == cost.stage_latency_us(replace(lanes, strategy=CONCURRENT))
        return
    works, launches = cost._work, cost.modelled.launches
    lane = {each: number for number, group in enumerate(lanes.groups) for each in group}
    after = {each: [*graph.successors[each]] for each in graph.by_name}
    for group in lanes.groups:
        for one, other in pairwise(group):
            after[one].append(other)

    def longest_us(one: str) -> float:
        own = works[one].path_us - launches.interference * works[one].busy_us
        waits = (longest_us(other) + launches.fork_us * (lane[one] != lane[other]) for other in after[one])
        return own + max(waits, default=0.0)

    groups = [cost._group(group) for group in lanes.groups]
    spilled = cost._spilling(groups) * sum(group.spill_us for group in groups)
    busy, issued = sum(group.busy_us for group in groups), launches.issue_us * sum(group.n_kernels for group in groups)
    ends = busy, issued, max(map(longest_us, graph.by_name)) + launches.interference * (busy + spilled)
    assert latency_us == pytest.approx(launches.fork_us * len(groups) + max(ends))
    assert sum(cost.shares_us(lanes).values()) <= latency_us * (1 + 1e-9)
    linked = any(graph.successors[one] for one in graph.by_name)
    if not linked:
        assert latency_us == pytest.approx(cost.stage_latency_us(replace(lanes, strategy=CONCURRENT)))


@given(small_graphs(), st.sampled_from(gpu_keys()), st.sampled_from(PRECISIONS), st.data())
def test_a_group_takes_at_least_as_long_as_its_operators(
    graph: ComputationGraph, name: str, precision: PrecisionName, data: st.DataObject
) -> None:
    """`AdditiveGroups` declares this; the proof that blocks have no worse schedules than the graph relies on it."""
    cost: CostModel = AnalyticCost(graph, gpu(name), precision)
    names = [operator.name for operator in graph.operators]
    group = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=5, unique=True)))
    in_turn_us = sum(cost.stage_latency_us(Stage(CONCURRENT, ((one,),))) for one in group)

    assert isinstance(cost, AdditiveGroups)
    assert cost.groups_are_additive
    assert cost.stage_latency_us(Stage(CONCURRENT, (group,))) >= in_turn_us * (1 - 1e-12)


@given(small_graphs(), st.sampled_from([Pruning(3, 8), Pruning(2, 1), Pruning(1, None)]), st.sampled_from([4, 8000]))
def test_a_schedule_proven_optimal_is_the_best_of_the_whole_graph(
    graph: ComputationGraph, pruning: Pruning, max_states: int
) -> None:
    cost = AnalyticCost(graph, gpu("v100"))

    def stage_us(names: frozenset[str]) -> float:
        groups = (tuple(sorted(group)) for group in groups_of(graph, names))
        ways = [Stage(CONCURRENT, tuple(groups))]
        if can_merge(graph, names):
            ways.append(Stage(MERGE, tuple((name,) for name in sorted(names))))
        return min(map(cost.stage_latency_us, ways))

    found = search(graph, cost, pruning=pruning, max_states=max_states)
    best = best_us(graph, stage_us, pruning.r, pruning.s)

    assert found.proven != "whole" or found.schedule.predicted_us == pytest.approx(best, rel=1e-12)


@given(small_graphs(), st.sampled_from([Pruning(3, 8), Pruning(1, 2), Pruning(None, None)]))
def test_the_lazy_search_is_as_good_as_the_exhaustive_one(graph: ComputationGraph, pruning: Pruning) -> None:
    lazy = search(graph, AnalyticCost(graph, gpu("v100")), pruning=pruning)
    exhaustive = search(graph, AnalyticCost(graph, gpu("v100")), pruning=pruning, effort=Effort(exhaustive=True))

    assert lazy.schedule.predicted_us == pytest.approx(exhaustive.schedule.predicted_us)
    assert lazy.proven is not None
    assert lazy.measured <= exhaustive.measured


def test_equal_keys_mean_equal_latencies_for_any_names_and_order() -> None:
    cost = AnalyticCost(branches(3), gpu("v100"))

    assert len({cost.operator_key(name) for name in "012"}) == 1
    latencies = [cost.stage_latency_us(side_by_side(*order)) for order in permutations("012")]
    assert latencies == pytest.approx([latencies[0]] * 6)


def test_small_kernels_overlap_and_large_ones_do_not() -> None:
    small = AnalyticCost(branches(2, 256, kernel=5), gpu("v100"), launches=STREAM_LAUNCHES)
    large = AnalyticCost(branches(2, 512, 112), gpu("v100"), launches=STREAM_LAUNCHES)

    def gain(cost: AnalyticCost) -> float:
        return cost.stage_latency_us(Stage(CONCURRENT, (("0", "1"),))) / cost.stage_latency_us(side_by_side("0", "1"))

    assert gain(small) > 1.4
    assert gain(large) == pytest.approx(1, abs=0.01)


def test_merging_small_kernels_saves_a_launch_and_fills_the_device() -> None:
    cost = AnalyticCost(branches(2), gpu("v100"))

    merged = cost.stage_latency_us(Stage(MERGE, (("0",), ("1",))))

    assert cost.stage_latency_us(side_by_side("0")) <= merged < cost.stage_latency_us(side_by_side("0", "1"))


def test_a_merge_does_all_the_arithmetic_of_its_parts() -> None:
    parts, whole = AnalyticCost(branches(2, 256, 112), gpu("v100")), AnalyticCost(branches(1, 512, 112), gpu("v100"))

    merged = parts.stage_latency_us(Stage(MERGE, (("0",), ("1",))))

    assert merged == pytest.approx(whole.stage_latency_us(side_by_side("0")))


def test_a_grouped_convolution_does_one_product_for_each_group() -> None:
    def latency_us(channels: int, group: int) -> float:
        graph = branches(1, channels, 112, group=group, kernel=5)  # which Winograd's algorithms do not compute
        return (
            AnalyticCost(graph, gpu("v100")).stage_latency_us(side_by_side("0")) - LAUNCH_CONSTANTS["graph"].kernel_us
        )

    assert latency_us(256, 2) == pytest.approx(latency_us(256, 1) / 2, rel=0.02)
    assert latency_us(512, 2) == pytest.approx(2 * latency_us(256, 2), rel=0.15)  # larger tiles load less


def test_many_short_kernels_are_bound_by_the_launch_rate() -> None:
    graph = branches(8, 8, 4)
    slow, idle = (replace(STREAM_LAUNCHES, issue_us=issue_us) for issue_us in (10.0, 0.0))

    started = AnalyticCost(graph, gpu("v100"), launches=slow).stage_latency_us(side_by_side(*"01234567"))
    hindered = AnalyticCost(graph, gpu("v100"), launches=idle).stage_latency_us(side_by_side(*"01234567"))

    assert started == pytest.approx(8 * (slow.issue_us + slow.fork_us))
    assert hindered < started


def test_a_merge_pays_for_the_padding_of_small_kernels() -> None:
    source = TensorSpec("x", "float32", (1, 64, 56, 56))
    one, three, other = conv("1", source, 256, 1), conv("3", source, 256), conv("0", source, 256)
    operators, results = zip(one, three, other, strict=True)
    cost = AnalyticCost(ComputationGraph("fire", (source,), ("1", "3", "0"), operators, results), gpu("v100"))

    padded = cost.stage_latency_us(Stage(MERGE, (("1",), ("3",))))

    assert padded == pytest.approx(cost.stage_latency_us(Stage(MERGE, (("3",), ("0",)))))


def test_groups_that_do_not_fit_into_the_l2_together_hinder_each_other() -> None:
    graph = branches(4, 64, 56, group=64)
    fast = replace(STREAM_LAUNCHES, window=10.0, issue_us=0.0)  # so that depthwise convolutions are bound by memory
    small = AnalyticCost(graph, replace(gpu("v100"), l2_nbytes=2 * 2**20), launches=fast)
    large = AnalyticCost(graph, replace(gpu("v100"), l2_nbytes=64 * 2**20), launches=fast)

    assert small.stage_latency_us(side_by_side("0")) == large.stage_latency_us(side_by_side("0"))
    assert small.stage_latency_us(side_by_side(*"0123")) > large.stage_latency_us(side_by_side(*"0123"))


@pytest.mark.parametrize(
    "name",
    ["squeezenet", "inception_v3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("randwire", "nasnet_a"))],
)
def test_a_network_runs_the_published_number_of_kernels(name: str) -> None:
    """The numbers of kernels of the sequential schedules in table 5 of DOS. (For RandWire, one sum less is 406.)"""
    graph = network(name)
    published = {"squeezenet": 50, "inception_v3": 119, "randwire": 406, "nasnet_a": 965}

    n_kernels = sum(len(kernels_of(graph, operator)) for operator in graph.operators)

    assert n_kernels == pytest.approx(published[name], abs=1)


def test_a_reshape_costs_nothing() -> None:
    source, result = TensorSpec("x", "float32", (1, 8)), TensorSpec("y", "float32", (8,))
    reshape = Operator("y", "Reshape", ("y",), ("x",), ("y",), nbytes=64)
    cost = AnalyticCost(ComputationGraph("g", (source,), ("y",), (reshape,), (result,)), gpu("v100"))

    assert cost.stage_latency_us(side_by_side("y")) == 0.0


def test_a_matrix_product_is_bound_by_its_weights_at_batch_one_and_by_arithmetic_at_a_large_one() -> None:
    def latency_us(batch: int) -> float:
        source, result = TensorSpec("x", "float32", (batch, 4096)), TensorSpec("y", "float32", (batch, 4096))
        weights = TensorSpec("w", "float32", (4096, 4096))
        flops, nbytes = 2 * batch * 4096**2, source.nbytes + result.nbytes + weights.nbytes
        product = Operator("y", "Gemm", ("y",), ("x",), ("y",), (), (weights,), flops, nbytes)
        graph = ComputationGraph("g", (source,), ("y",), (product,), (result,))
        return AnalyticCost(graph, gpu("v100")).stage_latency_us(side_by_side("y"))

    assert latency_us(1) > 4096**2 * 4 / 900e3
    assert latency_us(2) == pytest.approx(latency_us(1), rel=0.01)
    assert 1 <= latency_us(8192) / (2 * 8192 * 4096**2 / 15.7e6) < 1.2


def test_tensor_cores_and_half_the_bytes_make_large_products_faster_where_the_gpu_has_them() -> None:
    graph = branches(1, 1024, 112, batch=8)

    def latency_us(name: str, precision: PrecisionName) -> float:
        return AnalyticCost(graph, gpu(name), precision).stage_latency_us(side_by_side("0"))

    assert latency_us("a100", "fp16") < latency_us("a100", "tf32") / 1.5 < latency_us("a100", "fp32") / 3
    assert latency_us("v100", "tf32") == latency_us("v100", "fp32")
    assert latency_us("v100", "fp16") < latency_us("v100", "fp32") / 3
    assert latency_us("k80", "fp16") == pytest.approx(latency_us("k80", "fp32"), rel=0.01)


def test_unknown_shapes_and_foreign_operators_still_cost_a_launch() -> None:
    source, result = TensorSpec("x", "float32", (4,)), TensorSpec("y", "float32", None)
    strange = Operator("y", "com.example::Strange", ("y",), ("x",), ("y",))
    weightless = Operator("z", "Conv", ("z",), ("x",), ("z",))
    graph = ComputationGraph("g", (source,), ("y", "z"), (strange, weightless), (result,))

    cost = AnalyticCost(graph, gpu("h100"))

    assert cost.stage_latency_us(side_by_side("y")) == cost.stage_latency_us(side_by_side("z")) > 0


def test_a_calibration_replaces_the_constants() -> None:
    slow = LaunchConstants(kernel_us=100.0, issue_us=0.0, fork_us=0.0, window=0.02, interference=0.7)

    assert AnalyticCost(branches(1), gpu("v100"), launches=slow).stage_latency_us(side_by_side("0")) > 100


@given(small_graphs(), st.sampled_from(gpu_keys()))
def test_a_graph_launches_no_stage_slower_than_streams_do_and_slower_nodes_make_slower_stages(
    graph: ComputationGraph, name: str
) -> None:
    launches = [in_graph(LEAST_NODE_US), in_graph(NODE_US), in_graph(MOST_NODE_US), STREAM_LAUNCHES]
    costs = [AnalyticCost(graph, gpu(name), launches=each) for each in launches]

    for size in (1, 2, 3):
        for names in combinations([operator.name for operator in graph.operators], size):
            for stage in (side_by_side(*names), Stage(CONCURRENT, (names,))):
                latencies = [cost.stage_latency_us(stage) for cost in costs]
                assert latencies == sorted(set(latencies))


def test_the_time_on_the_gpu_does_not_depend_on_the_launch() -> None:
    graph = branches(2, 256)
    one, both = side_by_side("0"), side_by_side("0", "1")
    graphs, streams = (
        AnalyticCost(graph, gpu("v100"), launches=LAUNCH_CONSTANTS[name]) for name in ("graph", "streams")
    )

    saved = STREAM_LAUNCHES.kernel_us - NODE_US

    assert graphs.busy_us(both) == streams.busy_us(both)
    assert streams.stage_latency_us(one) - graphs.stage_latency_us(one) == pytest.approx(saved)


def test_greedy_is_worse_than_sequential_where_streams_launch_short_kernels_and_better_where_a_graph_does() -> None:
    """SqueezeNet in figure 6 of Ding et al., MLSys 2021, and GoogLeNet in graphs in Opara's repository."""
    graph = network("squeezenet")
    graphs, streams = (
        AnalyticCost(graph, gpu("v100"), launches=LAUNCH_CONSTANTS[name]) for name in ("graph", "streams")
    )

    assert streams.schedule_latency_us(greedy(graph)) > streams.schedule_latency_us(sequential(graph))
    assert graphs.schedule_latency_us(greedy(graph)) < graphs.schedule_latency_us(sequential(graph))


PUBLISHED_MS = {"squeezenet": (0.86, 0.98, 0.73), "inception_v3": (6.51, 4.62, 4.03)}


@pytest.mark.parametrize("name", PUBLISHED_MS)
def test_latencies_on_the_v100_are_near_the_published_ones(name: str) -> None:
    """Figure 6 of Ding et al., MLSys 2021: the sequential and the greedy schedule, and the one that they found."""
    graph = network(name)
    cost = AnalyticCost(graph, gpu("v100"), launches=STREAM_LAUNCHES)
    schedules: list[Schedule] = [sequential(graph), greedy(graph), search(graph, cost).schedule]

    predicted = [cost.schedule_latency_us(schedule) / 1000 for schedule in schedules]

    assert predicted == pytest.approx(PUBLISHED_MS[name], rel=0.1)
    assert schedules[2].predicted_us == pytest.approx(cost.schedule_latency_us(schedules[2]))


def test_a_relu_before_a_convolution_and_each_convolution_of_a_separable_one_is_a_kernel() -> None:
    net = Network("kernels")
    x = net.max_pool(net.input(8, 10), 2, "pool")
    both = net.concat([net.relu_conv(x, 16, "dense"), net.relu_sep_conv(x, 16, 3, "separable")], "y")
    graph = load_model(net.finish(both).SerializeToString()).graph
    kinds = {name: [type(kernel) for kernel in kernels_of(graph, graph.by_name[name])] for name in graph.by_name}
    assert (kinds["dense"], kinds["separable"]) == ([Stream, Product], [Stream, Stream, Product])


@given(count=st.integers(1, 12), channels=st.sampled_from((8, 64, 512)), size=st.sampled_from((7, 28, 112)))
def test_runs_in_flight_take_as_long_as_groups_of_a_stage_without_forks(count: int, channels: int, size: int) -> None:
    one, all_at_once = (AnalyticCost(branches(n, channels, size), gpu("v100")) for n in (1, count))
    stage = Stage(CONCURRENT, tuple((str(number),) for number in range(count)))
    forks_us = all_at_once.modelled.launches.fork_us * count if count > 1 else 0.0
    expected_us = (all_at_once.stage_latency_us(stage) - forks_us) / count
    assert one.in_flight_us(sequential(one.graph), count) == pytest.approx(expected_us)


@pytest.mark.parametrize("make", [sequential, greedy])
@pytest.mark.parametrize("name", ["k80", "v100", "h100"])
def test_a_gpu_is_never_more_than_fully_used(make, name: str) -> None:
    cost = AnalyticCost(zoo_model("squeezenet").graph, gpu(name))
    schedule = make(cost.graph)
    alone_us, busy_us = cost.schedule_latency_us(schedule), sum(map(cost.busy_us, schedule.stages))
    assert cost.in_flight_us(schedule, 1) == pytest.approx(alone_us)
    rates_us = [cost.in_flight_us(schedule, count) for count in (2, 4, 64)]
    assert alone_us > rates_us[0] > rates_us[-1] >= busy_us
