"""Small kernels of several operators become one where one alone reads what another writes, and compute the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import random_schedule
from networks import zoo_model
from small_models import separable_operators

from iosched.models.model import Model
from iosched.runtime.cuda.builder import KernelCall
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower import lowered_model as lowered_module
from iosched.runtime.cuda.lower.fused import KernelChoice
from iosched.runtime.cuda.lower.joined import sums_in_separables
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower, lower_stage
from iosched.runtime.cuda.samples import sample
from iosched.runtime.cuda.source.activation import RELU
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential, together
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

FP32 = Precision("fp32")
HALVED = "kernel_shape=[2,2], strides=[2,2]"
WINDOW = "kernel_shape=[3,3], pads=[1,1,1,1]"
WEIGHTS = "float[16,1,3,3] wd, float[16,16,1,1] wp, float[16,1,5,5] we, float[16,16,1,1] wq, float[16] wb"


def separable(x: str, y: str) -> str:
    return f"{y}r = Relu({x}) {y}m = Conv<pads=[1,1,1,1], group=16>({y}r, wd) {y} = Conv({y}m, wp, wb)"


def model_of(body: str, outputs: str = "y", shape: str = "2,16,9,8") -> Model:
    declared = ", ".join(f"float[] {name}" for name in outputs.split())
    return sample(f"(float[{shape}] x, {WEIGHTS}) => ({declared}) {{ {body} }}")


def fused(
    model: Model, precision: Precision = FP32, layout: Layout = Layout.NHWC, *, other: bool = False
) -> LoweredModel:
    choice = KernelChoice(1, other)
    return LoweredModel(model, precision, layout).with_fused(dict.fromkeys(separable_operators(model), choice))


def kinds(lowering: Lowering) -> Counter[str]:
    tasks = (task for lane in lowering.plan.lanes for task in lane)
    found = Counter(type(lowering.kernels[task.kernel]).__name__ for task in tasks)
    del found["Copy"], found["JoinNode"]
    return found


def calls(network: LoweredModel) -> list[KernelCall]:
    return [call for own in network.calls.values() for call in own]


def check_plans(network: LoweredModel, schedules: Sequence[Schedule], tolerance: float = 1e-5) -> None:
    model = network.model
    inputs = random_inputs(model.graph.inputs)
    expected = expected_outputs(model, inputs)
    for number, schedule in enumerate(schedules):
        for barriers in (True, False):
            plan = lower(network, schedule, barriers=barriers)
            assert relative_error(interpreted(plan, inputs, seed=number), expected) < tolerance


# Pools in sums


@pytest.mark.parametrize(
    ("body", "pooled", "reads"),
    [
        (f"p = AveragePool<{WINDOW}>(a) y = Add(p, x)", 1, 2),
        (
            f"q = MaxPool<{HALVED}>(x) r = Neg(q) p = MaxPool<{HALVED}>(a) y = Sum(r, p)",
            1,
            2,
        ),
        (f"p = AveragePool<{WINDOW}>(a) q = AveragePool<{WINDOW}>(x) y = Sum(p, x, q)", 2, 3),
        (f"p = MaxPool<{WINDOW}>(a) q = MaxPool<{WINDOW}>(x) s = Add(p, q) y = Relu(s)", 1, 2),
        (f"p = AveragePool<{WINDOW}>(a) q = AveragePool<{WINDOW}, count_include_pad=1>(x) y = Add(p, q)", 1, 2),
        (f"p = AveragePool<{WINDOW}>(a) s = Add(p, x) y = Concat<axis=1>(a, s)", 1, 2),
    ],
)
def test_a_pool_joins_the_sum_that_reads_it(body: str, pooled: int, reads: int) -> None:
    network = LoweredModel(model_of(f"a = Sigmoid(x) {body}"), FP32)
    (found,) = (call for call in calls(network) if isinstance(call.kernel, Pool) and len(call.reads) > 1)
    assert isinstance(found.kernel, Pool)
    assert (found.kernel.pooled, len(found.reads)) == (pooled, reads)
    assert not [call for call in calls(network) if isinstance(call.kernel, AddN)]
    graph = network.model.graph
    check_plans(network, [sequential(graph), greedy(graph), together(graph), random_schedule(graph, 1)])


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"p = AveragePool<{WINDOW}>(x) y = Add(p, x) z = Sigmoid(p)", "y z"),
        (f"p = AveragePool<{WINDOW}>(x) y = Add(p, x)", "y p"),
        (f"p = AveragePool<{WINDOW}>(x) y = Add(p, p)", "y"),
        (f"p = AveragePool<{WINDOW}>(x) q = Sigmoid(p) y = Add(q, x)", "y"),
    ],
)
def test_a_pool_with_other_readers_stays(body: str, outputs: str) -> None:
    network = LoweredModel(model_of(body, outputs), FP32)
    assert Counter(type(call.kernel).__name__ for call in calls(network))["AddN"] == 1
    check_plans(network, [sequential(network.model.graph)])


def test_averages_of_images_of_unequal_sizes_are_not_joined() -> None:
    """The last column of the larger one is in no window."""
    window = "kernel_shape=[2,2], strides=[2,2]"
    body = f"""a = Sigmoid(x) b = MaxPool<kernel_shape=[1,2]>(a) c = Tanh(b)
        p = AveragePool<{window}>(a) q = AveragePool<{window}>(c) y = Add(p, q)"""
    network = LoweredModel(model_of(body, shape="1,16,9,9"), FP32)
    assert [call.kernel.pooled for call in calls(network) if isinstance(call.kernel, Pool)] == [1, 1, 1]
    check_plans(network, [sequential(network.model.graph)])


# Averages after convolutions

CONVOLUTIONS = "float[8,16,1,1] wn, float[24,16,1,1] ww, float[8,16,3,3] wt, float[8,8,1,1] wg, float[8] wc"


def averaged(pool: str, conv: str, end: str = "y = Relu(c)") -> LoweredModel:
    body = f"a = Sigmoid(x) p = AveragePool<kernel_shape=[3,3], {pool}>(a) c = Conv{conv} {end}"
    return LoweredModel(sample(f"(float[2,16,9,8] x, {CONVOLUTIONS}) => (float[] y) {{ {body} }}"), FP32)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("end", ["y = Relu(c)", "y = Sigmoid(c)", "y = Identity(c)"])
def test_an_average_moves_after_a_convolution(end: str, counted: int, layout: Layout) -> None:
    """Its bias and its ReLU come last, so that padding that counts makes no difference."""
    network = averaged(f"pads=[1,1,1,1], count_include_pad={counted}", "(p, wn, wc)", end).in_layout(layout)
    own = calls(network)
    (first, linear), (second, pool) = ((n, each) for n, each in enumerate(own) if isinstance(each.kernel, Conv | Pool))
    assert isinstance(linear.kernel, Conv)
    assert isinstance(pool.kernel, Pool)
    assert first < second
    assert not linear.kernel.bias
    assert linear.kernel.activation.is_identity
    assert pool.reads[0] == linear.writes[0]
    assert pool.kernel.activation.is_identity == (end != "y = Relu(c)")
    graph = network.model.graph
    assert [linear in network.calls["p"], pool in network.calls[graph.operators[2].name]] == [True, True]
    check_plans(network, [sequential(graph), greedy(graph), together(graph)])
    half = LoweredModel(network.model, Precision("fp16"), layout)
    check_plans(half, [sequential(graph)], 5e-3)


@pytest.mark.parametrize(
    ("pool", "conv"),
    [
        ("pads=[1,1,1,1], strides=[2,2]", "(p, wn)"),
        ("strides=[1,1]", "(p, wn)"),  # fewer pixels after it
        ("pads=[1,1,1,1]", "(p, ww)"),  # more channels after it
        ("pads=[1,1,1,1]", "<pads=[1,1,1,1]>(p, wt)"),
        ("pads=[1,1,1,1]", "<pads=[1,1,1,1]>(p, wn)"),
        ("pads=[1,1,1,1]", "<strides=[2,2]>(p, wn)"),
        ("pads=[1,1,1,1]", "<group=2>(p, wg)"),
    ],
)
def test_an_average_stays_if_moving_it_changes_results_or_costs_more(pool: str, conv: str) -> None:
    network = averaged(pool, conv)
    (found,) = (call for call in calls(network) if isinstance(call.kernel, Pool))
    assert found.writes == ("p",)
    check_plans(network, [sequential(network.model.graph)])


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"p = AveragePool<{WINDOW}>(x) y = Conv(p, wp) z = Conv(p, wq)", "y z"),
        (f"p = AveragePool<{WINDOW}>(x) y = Conv(p, wp)", "y p"),
        (f"p = MaxPool<{WINDOW}>(x) y = Conv(p, wp)", "y"),
        (f"p = AveragePool<{WINDOW}>(x) c = Conv(p, wp) y = Add(c, x)", "y"),
        (f"p = AveragePool<{WINDOW}>(x) r = Relu(p) y = Conv(r, wp)", "y"),
    ],
)
def test_a_pool_stays_if_it_has_other_readers_is_a_maximum_or_precedes_more_than_a_convolution(
    body: str, outputs: str
) -> None:
    network = LoweredModel(model_of(body, outputs), FP32)
    (found,) = (call for call in calls(network) if isinstance(call.kernel, Pool))
    assert found.reads == ("x",)
    check_plans(network, [sequential(network.model.graph)])


@settings(max_examples=30)
@given(
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["Identity", "Relu", "HardSigmoid"]),
    st.sampled_from(Layout),
)
def test_averages_and_convolutions_equal_onnxruntime(
    halves: tuple[int, int], counted: bool, bias: bool, end: str, layout: Layout
) -> None:
    """Windows of every odd extent, padded on all sides."""
    kernel, pads = [2 * half + 1 for half in halves], [*halves, *halves]
    pool = f"kernel_shape={kernel}, pads={pads}, count_include_pad={int(counted)}"
    body = f"p = AveragePool<{pool}>(x) c = Conv(p, wn{', wc' if bias else ''}) y = {end}(c)"
    model = sample(f"(float[2,16,9,8] x, {CONVOLUTIONS}) => (float[] y) {{ {body} }}")
    network = LoweredModel(model, FP32, layout)
    assert [type(call.kernel) for call in network.calls["p"]] == [Conv]
    check_plans(network, [sequential(model.graph)])


# Sums in separable convolutions


def test_a_sum_joins_the_convolutions_that_alone_read_it() -> None:
    body = f"a = Sigmoid(x) b = Tanh(x) s = Sum(a, b, x) {separable('s', 'y')}"
    for network, kernel in ((LoweredModel(model_of(body), FP32), Depthwise), (fused(model_of(body)), Separable)):
        (found,) = (call for call in calls(network) if isinstance(call.kernel, kernel))
        assert isinstance(found.kernel, Depthwise | Separable)
        assert (found.kernel.terms, found.kernel.relu) == (3, True)
        assert not [call for call in calls(network) if isinstance(call.kernel, AddN)]
        check_plans(network, [sequential(network.model.graph), together(network.model.graph)])
    apart = fused(model_of(body), other=True)
    assert [call.kernel for call in calls(apart) if isinstance(call.kernel, AddN)] == [AddN(RELU)]
    check_plans(apart, [sequential(apart.model.graph)])


def test_a_sum_that_costs_many_repeated_reads_has_a_separate_kernel_by_default() -> None:
    """At most 4 MiB more: of an image of 1 MiB, five terms read by three rows of taps are 6 MiB more, four are 4."""
    for count, within in ((4, True), (5, False)):
        makers = " ".join(
            f"t{k} = {kind}(x)" for k, kind in enumerate(["Sigmoid", "Tanh", "Abs", "Neg", "Exp"][:count])
        )
        body = f"{makers} s = Sum({', '.join(f't{k}' for k in range(count))}) {separable('s', 'y')}"
        network = LoweredModel(model_of(body, shape="1,16,128,128"), FP32)
        assert [AddN(RELU) in {call.kernel for call in calls(network)}] == [not within]


def test_a_relu_of_a_sum_does_not_move_into_its_terms() -> None:
    """`hoist` moves no ReLU into the writers of terms, even if all other readers begin with one."""
    body = f"a = Conv(x, wp, wb) b = Conv(x, wq, wb) s = Sum(a, b, x) {separable('s', 'y')} r = Relu(a) z = Conv(r, wq)"
    network = fused(model_of(body, "y z"))
    assert all(call.kernel.activation.is_identity for call in calls(network) if isinstance(call.kernel, Conv))
    check_plans(network, [sequential(network.model.graph)])


# Sums in epilogues

PAIR = f"a = Sigmoid(x) {separable('a', 'b')} {separable('x', 'c')} y = Add(b, c)"


def stages(*groups: Sequence[Sequence[str]]) -> Schedule:
    return Schedule((Block(0, tuple(Stage(Strategy.CONCURRENT, tuple(map(tuple, own))) for own in groups)),))


def test_a_sum_with_earlier_terms_joins_a_separable_convolution_in_every_schedule() -> None:
    """With the ReLU that both readers of the sum begin with."""
    readers = "u = Relu(s) y = Conv(u, wp) v = Relu(s) z = Conv(v, wq)"
    model = model_of(f"a = Sigmoid(x) {separable('a', 'b')} s = Sum(b, a, x) {readers}", "y z")
    network = fused(model)
    (found,) = network.calls["b"]
    assert isinstance(found.kernel, Separable)
    assert (found.reads[-2:], found.writes, found.kernel.activation) == (("a", "x"), ("s",), RELU)
    assert network.calls["s"] == []
    check_plans(network, [sequential(model.graph), greedy(model.graph), together(model.graph)])
    stage = lower_stage(network, Stage(Strategy.CONCURRENT, (("s",),)))
    assert stage is not None
    assert not stage.plan.tasks


def test_a_sum_of_two_convolutions_joins_one_only_if_a_group_runs_both_in_order() -> None:
    model = model_of(PAIR)
    network = fused(model)
    schedules = {
        stages([["a", "b", "c", "y"]]): 0,
        stages([["a", "c", "b", "y"]]): 0,
        stages([["a"]], [["b"]], [["c", "y"]]): 0,
        stages([["a"], ["c"]], [["b", "y"]]): 0,
        stages([["a"]], [["b"], ["c"]], [["y"]]): 1,
        stages([["a", "b"], ["c"]], [["y"]]): 1,
        sequential(model.graph): 1,
    }
    for schedule, sums in schedules.items():
        assert kinds(lower(network, schedule))["AddN"] == sums, schedule
        found = [lower_stage(network, stage) for stage in schedule.stages]
        assert sum(kinds(each)["AddN"] for each in found if each is not None) == sums
        if len(found) == 1 and found[0] is not None:  # nothing is read before it is written
            assert {view.buffer for view in found[0].plan.inputs} == {"x"}
    check_plans(network, list(schedules))


def test_measured_stages_have_the_same_kernels_as_the_schedule() -> None:
    """All stages together have as many kernels of each kind as the whole plan."""
    for seed in range(12):
        network = fused(random_model(seed))
        schedule = random_schedule(network.model.graph, seed)
        parts = [lower_stage(network, stage) for stage in schedule.stages]
        assert sum((kinds(each) for each in parts if each is not None), Counter()) == kinds(lower(network, schedule))


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"{separable('x', 'b')} y = Add(b, x) z = Sigmoid(b)", "y z"),
        (f"{separable('x', 'b')} y = Add(b, x)", "y b"),
        (f"{separable('x', 'b')} y = Add(b, b)", "y"),
        (f"{separable('x', 'b')} r = Relu(b) y = Add(r, x)", "y"),
        (f"{separable('x', 'b')} a = Sigmoid(x) y = Add(a, b)", "y"),
    ],
)
def test_a_sum_stays_if_a_term_has_other_readers_or_is_computed_later(body: str, outputs: str) -> None:
    network = fused(model_of(body, outputs))
    assert kinds(lower(network, sequential(network.model.graph)))["AddN"] == 1
    check_plans(network, [sequential(network.model.graph), greedy(network.model.graph)])


def test_only_the_first_of_a_chain_of_sums_joins() -> None:
    (convolution,) = fused(model_of(separable("x", "b"), "b")).calls["b"]
    first, second = KernelCall(AddN(), ("b", "x"), ("s",)), KernelCall(AddN(), ("s", "x"), ("t",))
    found = sums_in_separables([(convolution, "b"), (first, "s"), (second, "t")], frozenset("bs"))
    assert [(call.writes, name) for call, name in found] == [(("s",), "b"), (("t",), "t")]
    assert isinstance(convolution.kernel, Separable)
    rectified = replace(convolution, kernel=replace(convolution.kernel, activation=RELU))
    assert len(sums_in_separables([(rectified, "b"), (first, "s")], frozenset("b"))) == 2  # the ReLU comes first


# All of it


def random_model(seed: int, batch: int = 2) -> Model:
    """Images of one shape; sums of up to four of them, pools, convolutions, and Concats that 1x1 convolutions read."""
    draw, body, made = random.Random(seed), [], ["x"]
    for number in range(draw.randint(4, 16)):
        name, x = f"t{number}", draw.choice([*made[-3:], made[-1]])
        terms = [*draw.sample(made[:-1], min(draw.choice([1, 1, 2, 3]), len(made) - 1)), made[-1]]
        texts = {
            "sum": f"{name} = Sum({', '.join(terms)})" if len(terms) > 1 else f"{name} = Sigmoid({x})",
            "average": f"{name} = AveragePool<{WINDOW}, count_include_pad={draw.randint(0, 1)}>({x})",
            "maximum": f"{name} = MaxPool<{WINDOW}>({x})",
            "separable": separable(x, name),
            "convolution": f"{name}c = Conv({x}, wp, wb) {name} = Relu({name}c)",
            "concat": f"{name}j = Concat<axis=1>({x}, {made[0]}) {name} = Conv({name}j, wj)",
        }
        body.append(texts[draw.choices(list(texts), [5, 3, 1, 4, 3, 1])[0]])
        made.append(name)
    text = " ".join(body)
    ends = [name for name in made[1:] if not any(f"{sign}{name}{stop}" in text for sign in "( " for stop in ",)")]
    declared = ", ".join(
        f"float[] {name}" for name in dict.fromkeys([*ends, *draw.sample(made[1:], draw.randint(0, 1))])
    )
    return sample(f"(float[{batch},16,7,6] x, {WEIGHTS}, float[16,32,1,1] wj) => ({declared}) {{ {text} }}")


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 3e-2)])
def test_random_models_equal_onnxruntime_and_the_separate_kernels(
    precision: str, tolerance: float, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = 0
    for seed in range(25):
        model = random_model(seed)
        networks = [LoweredModel(model, Precision(precision), layout), fused(model, Precision(precision), layout)]
        graph = model.graph
        for network in (*networks, fused(model, Precision(precision), layout, other=True)):
            check_plans(network, [sequential(graph), random_schedule(graph, seed), together(graph)], tolerance)
        with monkeypatch.context() as patched:
            patched.setattr(lowered_module, "joined", lambda builder, own: own)
            separate = fused(model, Precision(precision), layout)
        saved += len(calls(separate)) - len(calls(networks[1]))
        inputs = random_inputs(graph.inputs)
        ours, theirs = (interpreted(lower(each, sequential(graph)), inputs, seed=0) for each in (networks[1], separate))
        assert relative_error(ours, theirs) < tolerance
    assert saved > 10


@pytest.mark.parametrize("layout", Layout)
def test_a_plan_whose_joined_kernel_writes_where_it_reads_is_refused(layout: Layout) -> None:
    """Windows read neighbours of each pixel, so no result may overwrite their inputs, term or residual."""
    body = f"""a = Sigmoid(x) b = Tanh(x) p = AveragePool<{WINDOW}>(a) s = Add(p, b) c = Neg(x) q = Sum(s, c)
        {separable("q", "d")} e = Add(d, c) y = Sigmoid(e)"""
    model = model_of(body)
    network = fused(model, layout=layout)
    plan = lower(network, sequential(model.graph)).plan
    check(plan)
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    tried = 0
    for task in plan.tasks:
        (write,) = task.writes
        for read in task.reads:
            spaces = {buffers[name].space.value for name in (read.buffer, write.buffer)}
            if spaces != {"arena"} or len(task.reads) < 2:
                continue
            moved = replace(buffers[write.buffer], offset=buffers[read.buffer].offset)
            aliased = [moved if buffer.name == write.buffer else buffer for buffer in plan.buffers]
            tried += 1
            with pytest.raises(HazardError):
                check(replace(plan, buffers=tuple(aliased)))
    assert tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "default", "one_kernel"), [("nasnet_a", 613, 375), ("randwire", 237, 179), ("inception_v3", 108, 108)]
)
def test_kernels_of_networks(name: str, default: int, one_kernel: int) -> None:
    model = zoo_model(name)
    network = LoweredModel(model, FP32, Layout.NCHW)
    both = network.with_fused(dict.fromkeys(separable_operators(model), KernelChoice(0)))
    found = [sum(kinds(lower(each, sequential(model.graph))).values()) for each in (network, both)]
    assert found == [default, one_kernel]


@pytest.mark.slow
def test_averages_of_inception_run_on_fewer_channels() -> None:
    network = LoweredModel(zoo_model("inception_v3"), FP32)
    channels = [
        (network.builder.shape(call.reads[0])[1], call.kernel.average)
        for call in calls(network)
        if isinstance(call.kernel, Pool)
    ]
    assert sum(average for _, average in channels) == 9
    assert max(found for found, average in channels if average) == 192
