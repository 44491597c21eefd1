"""The first operator that differs: the search for it, and faults put into one kernel or one weight, on every device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from typing import Any

import faulty_plans
import numpy as np
import onnx
import pytest
from faulty_plans import falsify
from host_cuda import needs_compiler
from host_gpu import HostGpu, attach_host, time_by_size
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from quantized import quantized
from scripted import NEEDS_OPENVINO, fire
from shipped import document
from small_models import branches, models, proto_of, weight

from iosched.jobs.bisect_mismatch import FirstDifference, MismatchCase, SchedulePosition, Values, find_differing, lines
from iosched.jobs.optimize import optimize
from iosched.jobs.run import RunResult, run
from iosched.jobs.settings import OptimizeSettings
from iosched.models.composition.compose import compose
from iosched.models.errors import MismatchError
from iosched.models.graph import ComputationGraph, Operator
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.cpu import backend as cpu_backend
from iosched.runtime.cpu import segments as as_one
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def graph_of(reads: Sequence[Collection[int]]) -> ComputationGraph:
    """Operators "0", "1", ... of which each reads earlier ones."""
    operators = tuple(
        Operator(str(number), "Relu", (str(number),), tuple(map(str, sorted(before))), (str(number),))
        for number, before in enumerate(reads)
    )
    read = {name for operator in operators for name in operator.inputs}
    outputs = tuple(operator.name for operator in operators if operator.name not in read)
    return ComputationGraph("g", (), outputs, operators, ())


class Looker:
    """Reports whether operators differ, from a known set; cannot see those in `dark`."""

    def __init__(self, differing: Collection[str], dark: Collection[str] = ()) -> None:
        self.differing, self.dark, self.cuts = differing, dark, list[Sequence[str]]()

    def __call__(self, operators: Sequence[str]) -> Mapping[str, bool]:
        self.cuts.append(operators)
        return {name: name not in self.differing for name in operators if name not in self.dark}


graphs = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*(st.sets(st.integers(0, max(i - 1, 0)), max_size=min(i, 3)) for i in range(n)))
).map(graph_of)  # fmt: skip


def spread(graph: ComputationGraph, faulty: str, dies: Collection[str]) -> set[str]:
    """The operators that differ if `faulty` is wrong and differences vanish in those of `dies`."""
    wrong = {faulty}
    for operator in graph.operators:
        if operator.name not in dies and wrong.intersection(operator.inputs):
            wrong.add(operator.name)
    return wrong


def searched(graph: ComputationGraph, looker: Looker, **more: int):
    order = [operator.name for operator in graph.operators]
    wrong = [name for name in graph.outputs if name in looker.differing]
    return find_differing(graph, order, wrong, set(graph.outputs) - set(wrong), looker, **more)


@given(graphs, st.data())
def test_one_wrong_operator_is_named_even_if_its_difference_vanishes_on_some_paths(graph, data) -> None:
    names = [operator.name for operator in graph.operators]
    faulty = data.draw(st.sampled_from(names))
    looker = Looker(spread(graph, faulty, data.draw(st.sets(st.sampled_from(names)))))
    if not looker.differing.intersection(graph.outputs):
        return
    found = searched(graph, looker)
    assert (found.operator, found.unseen, found.is_complete) == (faulty, (), True)


@given(graphs, st.data())
def test_of_several_wrong_operators_one_with_correct_inputs_is_named(graph, data) -> None:
    names = [operator.name for operator in graph.operators]
    differing = data.draw(st.sets(st.sampled_from(names), min_size=1))
    if not differing.intersection(graph.outputs):
        return
    found = searched(graph, Looker(differing))
    assert found.operator in differing
    assert differing.isdisjoint(graph.predecessors[found.operator])


@given(graphs, st.data())
def test_the_wrong_operator_is_named_or_listed_as_unseen(graph, data) -> None:
    names = [operator.name for operator in graph.operators]
    faulty, dark = data.draw(st.sampled_from(names)), data.draw(st.sets(st.sampled_from(names)))
    looker = Looker(spread(graph, faulty, ()), dark)
    found = searched(graph, looker)
    assert faulty in (found.operator, *found.unseen)
    assert dark.issuperset(found.unseen)
    assert found.is_complete


@pytest.mark.parametrize("faulty", [0, 1, 500, 998, 999])
def test_a_chain_of_a_thousand_takes_at_most_eleven_looks_at_one_tensor(faulty: int) -> None:
    graph = graph_of([{number - 1} if number else set() for number in range(1000)])
    looker = Looker(spread(graph, str(faulty), ()))
    assert searched(graph, looker).operator == str(faulty)
    assert len(looker.cuts) <= ceil(log2(1000)) + 1
    assert all(len(cut) == 1 for cut in looker.cuts)


def test_the_search_stops_after_most_looks_and_lists_the_unseen_operators() -> None:
    graph = graph_of([{number - 1} if number else set() for number in range(100)])
    found = searched(graph, Looker(spread(graph, "3", ())), most_looks=2)
    assert (found.operator, found.is_complete, found.looks) == ("24", False, 2)
    assert found.unseen == tuple(map(str, range(24)))


def ran(model: Model, way: ScheduleDocument | None, reference: Model | None = None, **members: Model) -> RunResult:
    inputs = random_inputs(model.graph.inputs)
    whole = None if members else reference or model
    return run(model, way, inputs, reference=whole, members=members, threads=2)


def named(found: RunResult) -> FirstDifference:
    assert found.check is not None
    assert not found.check.passed
    assert found.first_difference is not None
    return found.first_difference


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("way", ["greedy", "sequential"])
@pytest.mark.parametrize("operator", ["fs", "f3", "gs", "g1"], ids=["first", "branch", "middle", "last"])
def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch, operator: str, way: str, native: bool) -> None:
    if not native:
        monkeypatch.setattr(cpu_backend, "available", lambda: False)
    falsify(monkeypatch, operator)
    model = fire()
    found = named(ran(model, document(model, way)))
    assert (found.operator, found.type, found.unseen, found.cause) == (operator, "Conv", (), "runtime")
    assert found.inputs_max_rel is not None
    assert found.inputs_max_rel < 1e-4 < (found.max_rel or 0)
    assert found.place is not None
    stages = list(document(model, way).schedule.stages)
    assert operator in stages[found.place.stage].groups[found.place.group]
    assert found.is_complete
    assert not found.vanishes


def test_nothing_is_named_where_outputs_agree() -> None:
    model = fire()
    assert ran(model, document(model)).first_difference is None


def test_looks_are_counted_even_if_tensors_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, asked = MismatchCase.computed, list[Sequence[str]]()

    def one_at_a_time(case: MismatchCase, tensors: Sequence[str]) -> Values:
        asked.append(tensors)
        if len(tensors) > 1:
            raise ValueError("no plan passes")
        return computed(case, tensors)

    falsify(monkeypatch, "g1")
    monkeypatch.setattr(MismatchCase, "computed", one_at_a_time)
    model = fire()
    found = named(ran(model, document(model, "sequential")))
    assert (found.operator, found.cause) == ("g1", None)
    looks = asked[1:-1]  # the first is the unchanged run, the last the operator alone
    assert max(map(len, looks)) > 1
    assert found.looks == len(looks)


def test_a_merged_operator_is_named_with_the_others_of_its_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [helper.make_node("Conv", ["x", f"w{name}"], [name]) for name in "ab"]
    nodes += [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Concat", ["a", "b", "r"], ["y"], axis=1)]
    weights = {"wa": weight(8, 8, 1, 1), "wb": weight(8, 8, 1, 1, seed=1)}
    model = load_model(proto_of(nodes, {"x": [1, 8, 5, 5]}, ["y"], weights).SerializeToString())
    stages = (Stage(Strategy.MERGE, (("a",), ("b",))), Stage(Strategy.CONCURRENT, (("r", "y"),)))
    way = replace(document(model), schedule=Schedule((Block(0, stages),)))
    stacked = as_one._stacked_weight

    def half_of_it_upside_down(*args: Any) -> np.ndarray:
        found = stacked(*args).copy()
        found[len(found) // 2 :] *= -1
        return found

    monkeypatch.setattr(as_one, "_stacked_weight", half_of_it_upside_down)
    found = named(ran(model, way))
    assert (found.operator, found.unseen, found.cause) == ("b", (), "runtime")
    assert found.place == SchedulePosition(0, 0, 1, "merge", ("a",))
    assert "stage 1, group 2, run as one with 'a'" in lines(found)[0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_differences_too(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    falsify(monkeypatch, "gs", value=value)
    model = fire()
    found = named(ran(model, document(model)))
    assert (found.operator, found.max_abs, found.max_rel) == ("gs", None, None)
    assert "NaN or infinity" in found.reason


def test_a_difference_that_dies_out_on_the_way_to_one_output_shows_in_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Sub", ["a", "a"], ["zero"]),
        helper.make_node("Relu", ["zero"], ["y"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["z"], kernel_shape=[2, 2]),
    ]
    model = load_model(proto_of(nodes, {"x": [1, 4, 6, 6]}, ["y", "z"], {}).SerializeToString())
    falsify(monkeypatch, "a")
    assert named(ran(model, document(model, "sequential"))).operator == "a"


@pytest.mark.parametrize("with_pairs", [True, False], ids=["pairs", "qoperator"])
def test_wrong_integer_kernels_are_named(monkeypatch: pytest.MonkeyPatch, with_pairs: bool) -> None:
    model = load_model(quantized(branches(), with_pairs=with_pairs).SerializeToString())
    operator = next(each.name for each in model.graph.operators if each.name.startswith("b"))
    met = falsify(monkeypatch, "b_quantized" if not with_pairs else "b")
    found = named(ran(model, document(model, "sequential")))
    assert met
    assert (found.operator, found.cause) == (operator, "runtime")


def changed(model: Model, name: str) -> Model:
    """The same file with one weight changed."""
    weights = {**model.weights, name: model.weights[name] + np.float32(0.5)}
    return replace(model, proto=with_inline(model, name), weights=weights, original=None)


SHIPPED = ["iosched", "reference", pytest.param("openvino", marks=NEEDS_OPENVINO)]


@pytest.mark.parametrize("shipped", SHIPPED)
@pytest.mark.parametrize("operator", ["fs", "g3"])
def test_a_wrong_weight_of_the_file_is_named_whatever_runs_it(operator: str, shipped: str) -> None:
    original = fire()
    name = original.graph.by_name[operator].weights[0].name
    other = changed(original, name)
    found = named(ran(other, document(other, shipped=shipped), original))
    assert (found.operator, found.cause, found.unseen) == (operator, "model", ())
    assert "but not from the original" in lines(found)[1]


def with_inline(model: Model, name: str) -> onnx.ModelProto:
    """The proto with the changed weight, if the weight is small enough to be stored inline."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name == name and tensor.data_location != onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(model.weights[name] + np.float32(0.5), name))
    return proto


def test_an_operator_of_one_of_several_models_is_named_as_it_is_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = fire(), fire()
    whole = compose({"a": one, "b": other}).model
    falsify(monkeypatch, "b/gs")
    found = named(ran(whole, document(whole), a=one, b=other))
    assert (found.operator, found.cause) == ("b/gs", "runtime")


def test_accumulated_rounding_is_distinguished_from_a_wrong_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correct operators amplify a small error until it exceeds the tolerance."""
    nodes = [helper.make_node("Tanh", ["x"], ["a"])]
    nodes += [
        helper.make_node("Sub", ["a", "mean"], ["b"]),
        helper.make_node("Mul", ["b", "many"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = {"mean": np.full(1, 0.9, np.float32), "many": np.full(1, 50, np.float32)}
    proto = proto_of(nodes, {"x": [1, 4, 6, 6]}, ["y"], constants)
    model = load_model(proto.SerializeToString())
    rather_one = {"x": np.full((1, 4, 6, 6), np.arctanh(0.9), np.float32) + np.float32(1e-3)}
    nudge(monkeypatch, "a", 5e-5)
    found = run(model, document(model, "sequential"), rather_one, reference=model, threads=2)
    difference = named(found)
    assert (difference.operator, difference.cause) == ("b", "rounding")
    assert "no operator is wrong" in lines(difference)[1]


def nudge(monkeypatch: pytest.MonkeyPatch, operator: str, value: float) -> None:
    """Makes the operator wrong by less than the tolerance."""

    def off(graph: onnx.GraphProto, node: onnx.NodeProto, _: float) -> list[onnx.NodeProto]:
        true = node.output[0]
        node.output[0] = f"{true}/computed"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.float32), f"{true}/value"))
        return [helper.make_node("Add", [f"{true}/computed", f"{true}/value"], [true])]

    monkeypatch.setattr(faulty_plans, "twice_and", off)
    falsify(monkeypatch, operator)


def test_a_fault_that_vanishes_under_inspection_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a fault in memory reuse: the wrong kernel is lowered only if no intermediate tensor is kept."""
    model = fire()
    whole = cpu_backend.CpuBackend.compile
    with pytest.MonkeyPatch.context() as patch:

        def compile_(self: cpu_backend.CpuBackend, *args: object, **kwargs: object) -> object:
            with pytest.MonkeyPatch.context() as inner:
                if len(self.kernels.outputs) == 1:
                    falsify(inner, "g1")
                return whole(self, *args, **kwargs)  # type: ignore[arg-type]

        patch.setattr(cpu_backend.CpuBackend, "compile", compile_)
        found = named(ran(model, document(model)))
    assert found.vanishes
    assert found.operator == "gc"
    assert "g1" in found.unseen
    assert any("memory" in line for line in lines(found))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models(most=6), st.data())
def test_the_wrong_operator_of_any_graph_is_named(proto: onnx.ModelProto, data: st.DataObject) -> None:
    model = load_model(proto.SerializeToString())
    operator = data.draw(st.sampled_from([each.name for each in model.graph.operators]))
    with pytest.MonkeyPatch.context() as patch:
        met = falsify(patch, operator)
        result = ran(model, document(model))
    assert result.check is not None
    if met and not result.check.passed:
        found = named(result)
        # A fault of the fused kernel alone vanishes when its parts are inspected.
        alike = twins(model, operator)
        assert found.operator in alike or (found.vanishes and (operator in found.unseen or len(alike) > 1))


def twins(model: Model, operator: str) -> set[str]:
    """The operators with a node that computes the same as one of `operator`: onnxruntime makes one node of both."""
    known: dict[str, object] = {}
    for node in model.proto.graph.node:
        attributes = tuple(sorted(each.SerializeToString() for each in node.attribute))
        known[node.output[0]] = (node.op_type, attributes, tuple(known.get(name, name) for name in node.input))
    by_name = model.graph.by_name
    meant = {known[name] for name in by_name[operator].nodes}
    return {name for name, each in by_name.items() if meant & {known[node] for node in each.nodes}}


def test_wiring_that_differs_from_the_original_is_named(tmp_path: Path) -> None:
    original, other = branches(), branches()
    other.graph.node[3].input[:] = ["b", "c"]
    (tmp_path / "m.onnx").write_bytes(other.SerializeToString())
    model = load_model(tmp_path / "m.onnx")
    found = named(ran(model, None, load_model(original.SerializeToString())))
    assert (found.operator, found.cause) == ("y", "model")
    assert found.place is None


@pytest.fixture
def wrong_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU gets other weights of the convolution `gs` than the model has."""
    attach_host(monkeypatch)
    backend = HostGpu.backend

    def wrong(self: HostGpu, model: Model, *args: object) -> CudaBackend:
        return backend(self, changed(model, model.graph.by_name["gs"].weights[0].name), *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HostGpu, "backend", wrong)


@needs_compiler
def test_run_names_a_wrong_operator_on_a_gpu(wrong_weight: None) -> None:
    model = fire()
    way = replace(document(model), device={"kind": "cuda", "name": "Host 1000"})
    found = run(model, way, random_inputs(model.graph.inputs), reference=model, device="cuda").first_difference
    assert found is not None
    assert (found.operator, found.unseen, found.cause) == ("gs", (), "runtime")


@needs_compiler
def test_optimize_writes_nothing_and_names_a_wrong_operator_on_a_gpu(
    wrong_weight: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_by_size(monkeypatch)
    with pytest.raises(
        MismatchError, match=r"output 'gc' differs by(.|\n)*The first operator that differs is Conv 'gs'"
    ):
        optimize(fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db"))
