"""Operators joined into schedule units: valid units agree with brute force, and schedules keep units whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import pytest
from by_definition import TableCost, dags, graph_of, groups_of
from hypothesis import given
from hypothesis import strategies as st
from lowering import random_lanes
from onnx import helper
from scripted import fire
from shipped import document
from small_models import loaded, proto_of, weight

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import check_operators
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.unit_graph import UnitGraph, join_units, parse_units

DIAMOND = graph_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)])


def units_of(graph: ComputationGraph) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """Some operators of the graph in up to three units, in any order."""
    names = [operator.name for operator in graph.operators]

    def grouped(numbers: Sequence[int]) -> list[tuple[str, ...]]:
        units = (tuple(name for name, own in zip(names, numbers, strict=True) if own == each) for each in (1, 2, 3))
        return [unit[::-1] for unit in units if unit]

    return st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)).map(grouped)


def may_be_units(graph: ComputationGraph, units: Sequence[Sequence[str]]) -> bool:
    """Whether each is one weakly connected component, and the graph has no cycle after contracting them."""
    if any(len(groups_of(graph, frozenset(unit))) > 1 for unit in units):
        return False
    home = {name: name for name in graph.by_name} | {name: unit[0] for unit in units for name in unit}
    edges = TopologicalSorter[str]()
    for name, before in graph.predecessors.items():
        edges.add(home[name], *(home[each] for each in before if home[each] != home[name]))
    try:
        edges.prepare()
    except CycleError:
        return False
    return True


@given(st.data())
def test_units_are_those_of_the_definition(data: st.DataObject) -> None:
    graph = data.draw(dags(8))
    units = data.draw(units_of(graph))
    if not may_be_units(graph, units):
        with pytest.raises(UsageError, match=r"not connected|forms a cycle"):
            join_units(graph, units)
        return
    joined = join_units(graph, units)
    several = {frozenset(names) for names in joined.members.values() if len(names) > 1}
    assert several == {frozenset(unit) for unit in units if len(unit) > 1}
    assert sorted(name for names in joined.members.values() for name in names) == sorted(graph.by_name)
    for name, before in graph.predecessors.items():  # edges between units are those between their operators
        units_before = {joined.unit_of[each] for each in before} - {joined.unit_of[name]}
        assert units_before <= set(joined.graph.predecessors[joined.unit_of[name]])


@given(st.data())
def test_schedules_of_units_keep_them_whole(data: st.DataObject) -> None:
    graph = data.draw(dags(8))
    units = data.draw(units_of(graph).filter(lambda units: may_be_units(graph, units)))
    joined = join_units(graph, units)
    found = search(joined.graph, TableCost(data.draw(st.integers(0, 99))), pruning=Pruning(2, 3)).schedule
    for schedule in (found, sequential(joined.graph), greedy(joined.graph)):
        expanded = joined.expanded(schedule)
        check_operators(expanded, graph)
        groups = [group for stage in expanded.stages for group in stage.groups]
        for unit in units:
            (own,) = (group for group in groups if unit[0] in group)
            at = sorted(map(own.index, unit))
            assert at == [*range(at[0], at[0] + len(unit))]
        assert joined.expanded(expanded) == expanded
        assert joined.scheduled(expanded) == schedule


@given(st.data(), st.integers(0, 999))
def test_lanes_of_units_can_start(data: st.DataObject, seed: int) -> None:
    """Lanes of operators that separate those of a unit, or have others between them, are taken as units allow."""
    graph = data.draw(dags(7))
    asked = data.draw(units_of(graph))
    if not may_be_units(graph, asked):
        return
    units = join_units(graph, asked)
    lanes = Stage(Strategy.LANES, random_lanes(graph, list(graph.by_name), random.Random(seed)))
    schedule = Schedule((Block(0, (lanes,)),))
    for taken in (units.scheduled(schedule), Schedule((Block(0, tuple(units.stages(schedule))),))):
        check_operators(taken, units.graph)
        check_operators(units.expanded(taken), graph)
    if not asked:
        assert units.scheduled(schedule) == schedule
        assert units.stages(schedule) == (lanes,)


def test_without_units_nothing_changes() -> None:
    joined = join_units(DIAMOND, [])
    assert joined.graph is DIAMOND
    assert joined.expanded(greedy(DIAMOND)) == joined.scheduled(greedy(DIAMOND)) == greedy(DIAMOND)
    assert tuple(joined.stages(greedy(DIAMOND))) == tuple(greedy(DIAMOND).stages)


def test_a_unit_has_the_inputs_outputs_and_work_of_its_operators() -> None:
    graph = fire().graph
    (unit,) = (each for each in join_units(graph, [["f3", "fs"]]).graph.operators if "+" in each.type)
    assert (unit.name, unit.type, unit.inputs, unit.outputs) == ("fs", "Conv+Conv", ("x",), ("fs", "f3"))
    assert unit.flops == graph.by_name["fs"].flops + graph.by_name["f3"].flops
    assert not unit.merges


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([[]], "unit 1 is empty"),
        ([["0"], ["4"]], "unit 2 names '4', which is not an operator"),
        ([["0", "1", "0"]], "operator '0' is in unit 1 twice"),
        ([["0", "1"], ["1", "3"]], "operator '1' is in units 1 and 2"),
        ([["1", "2"]], "unit 1 is not connected: no path inside it links '1' and '2'"),
        ([["0", "1", "3"]], r"unit 1 \('0', '1', '3'\) forms a cycle with '2'"),
    ],
)
def test_an_error_names_the_unit_and_the_reason(units: list[list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        join_units(DIAMOND, units)


def test_two_units_that_read_each_other_make_a_circle() -> None:
    graph = graph_of(4, [(0, 2), (1, 3), (0, 3), (1, 2)])
    assert len(join_units(graph, [["0", "2"]]).graph.operators) == 3
    with pytest.raises(UsageError, match=r"unit 1 \('0', '2'\) forms a cycle with unit 2 \('1', '3'\)"):
        join_units(graph, [["0", "2"], ["1", "3"]])


def test_the_error_for_an_inner_tensor_names_its_operator() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["r"])]
    nodes.append(helper.make_node("Sigmoid", ["r"], ["y"]))
    graph = loaded(proto_of(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"w": weight(2, 2, 1, 1)})).graph
    with pytest.raises(UsageError, match="unit 1 names 'c', which is not an operator: it is inside operator 'r'"):
        join_units(graph, [["c", "y"]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not a list of units"),
        (b"{}", "Expected `array`, got `object`"),
        (b'["a", "b"]', r"Expected `array`, got `str` - at `\$\[0\]`"),
        (b'[["a", 1]]', "Expected `str`, got `int`"),
        (b"[" * 100_000, "not a list of units"),
        (b'[["\xff"]]', "not a list of units"),
        (b'[["\\ud800"]]', "not a list of units"),
        (b"[]", "the list of units is empty"),
        (b" " * ((16 << 20) + 1), "larger than 16 MiB"),
    ],
)
def test_a_file_that_has_no_units_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_units(text)


@given(st.binary(max_size=40) | st.text(alphabet='[]",ab\\u', max_size=40).map(str.encode))
def test_any_text_is_units_or_refused(text: bytes) -> None:
    try:
        units = parse_units(text)
    except UsageError:
        return
    assert all(isinstance(name, str) for unit in units for name in unit)


def test_other_schedules_are_converted_to_the_units_of_the_cpu() -> None:
    model = fire()
    with CpuBackend(model, lanes=2) as backend:
        check_taken(backend.coarse.units, document(model, "greedy").schedule)
    check_taken(join_units(model.graph, [["fs", "f3"], ["g1", "g3", "gc", "gs"]]), sequential(model.graph))


def check_taken(units: UnitGraph, schedule: Schedule) -> None:
    """A schedule of operators, and one that runs each alone, are converted to schedules of the units."""
    names = sorted(units.members)
    alone = tuple(Stage(Strategy.CONCURRENT, ((name,),)) for names in units.members.values() for name in names)
    for each in (schedule, Schedule((Block(0, alone),))):
        assert sorted(name for stage in units.scheduled(each).stages for name in stage.operators) == names
