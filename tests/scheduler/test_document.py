"""Schedule files: read back as written, equal documents are equal bytes, and broken files are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from by_definition import TableCost, dags, graph_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.errors import InvalidScheduleError
from iosched.models.graph import ComputationGraph
from iosched.models.structure import NodeForm, OperatorForm, PlacedOperator, Structure, first_difference
from iosched.scheduler.document import Alternative, ScheduleDocument, SearchRecord, check_operators
from iosched.scheduler.document_format import Counts, Limits, Shipped
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import RecordedStrategy

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schedule.schema.json").read_text())
GRAPH = graph_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)])


def stage(*groups: tuple[str, ...], strategy: Strategy = Strategy.CONCURRENT) -> Stage:
    return Stage(strategy, groups, 1.5, None)


def document(*stages: Stage) -> ScheduleDocument:
    stages = stages or (stage(("0",)), stage(("1",), ("2",)), stage(("3",)))
    schedule = Schedule((Block(0, stages),))
    return ScheduleDocument(
        "net", "ab" * 32, {"x": (1,)}, "float32", {"kind": "cpu", "name": "Some CPU"}, schedule,
        search=SearchRecord(pruning=Limits(None, 8), counts=Counts(5, 0, 0, 0)),
        latency_us={"predicted": 1 / 3, "reference": None},
        runtime={"threads": 2}, alternatives=(Alternative("sequential", schedule, 7.0),),
    )  # fmt: skip


@given(dags(7))
def test_a_document_is_read_back_as_written_and_fits_the_schema(graph: ComputationGraph) -> None:
    found = replace(document(), schedule=search(graph, TableCost(1)).schedule)
    text = found.to_json()

    jsonschema.validate(json.loads(text), SCHEMA)
    again = ScheduleDocument.from_json(text)
    assert again.schedule == found.schedule
    assert again.to_json() == text
    again.validate_for(graph, "ab" * 32, {"x": (1,)})


def test_units_are_kept_and_invalid_ones_are_refused() -> None:
    found = replace(document(), units=(("1", "0"), ("3",)))
    content = json.loads(found.to_json())
    jsonschema.validate(content, SCHEMA)
    assert "units" not in json.loads(document().to_json())
    assert ScheduleDocument.from_json(found.to_json()).units == found.units
    found.validate_for(GRAPH, "ab" * 32, {"x": (1,)})
    with pytest.raises(InvalidScheduleError, match="invalid units in the schedule: unit 1 is not connected"):
        replace(found, units=(("1", "2"),)).validate_for(GRAPH, "ab" * 32, {"x": (1,)})
    for units in (7, ["0"], [[]], [[0]]):
        with pytest.raises(InvalidScheduleError, match=r"broken schedule: .*\$\.units"):
            ScheduleDocument.from_json(json.dumps({**content, "units": units}))


def test_proofs_are_kept_and_optimal_in_older_files_is_ignored() -> None:
    for proven, optimal in (("whole", True), ("blocks", False), (None, False)):
        found = replace(document(), proven=proven)
        assert ScheduleDocument.from_json(found.to_json()).proven == proven
        assert (found.optimal, json.loads(found.to_json())["optimal"]) == (optimal, optimal)
    older = {**json.loads(document().to_json()), "optimal": True}
    del older["proven"]
    jsonschema.validate(older, SCHEMA)
    assert not ScheduleDocument.from_json(json.dumps(older)).optimal


def test_the_schema_has_every_strategy_and_everything_that_may_ship() -> None:
    properties = SCHEMA["$defs"]["schedule"]["properties"]
    assert set(properties["search"]["properties"]["strategy"]["enum"]) == set(get_args(RecordedStrategy))
    assert set(properties["shipped"]["enum"]) == set(get_args(Shipped))
    assert set(SCHEMA["$defs"]["stage"]["properties"]["strategy"]["enum"]) == set(Strategy)


def test_lanes_of_groups_are_kept_and_optional() -> None:
    divided = replace(stage(("1",), ("2",)), division=Division(4, ((0,), (1, 3))))
    found = document(stage(("0",)), divided, stage(("3",)))
    text = found.to_json()
    jsonschema.validate(json.loads(text), SCHEMA)
    assert ScheduleDocument.from_json(text).schedule == found.schedule
    written = [each.get("division") for each in json.loads(text)["blocks"][0]["stages"]]
    assert written == [None, {"lanes": 4, "groups": [[0], [1, 3]]}, None]
    assert "division" not in document().to_json()


@pytest.mark.parametrize(
    ("division", "message", "fits_schema"),
    [
        ({"lanes": 2, "groups": [[0]]}, "division has 1 groups, but the stage has 2", True),
        ({"lanes": 2, "groups": [[0], [2]]}, "must ascend and be below 2", True),
        ({"lanes": 2, "groups": [[0], [1, 0]]}, "must ascend and be below 2", True),
        ({"lanes": 2, "groups": [[0], [0, 0]]}, "must ascend and be below 2", True),
        ({"lanes": 2, "groups": [[0], [-1]]}, r"division.groups\[1\]\[0\]", False),
        ({"lanes": 2, "groups": [[0], []]}, r"division.groups\[1\]", False),
        ({"lanes": 0, "groups": [[0], [1]]}, "division.lanes", False),
        ({"lanes": 10**6, "groups": [[0], [1]]}, "division.lanes", False),
        ({"lanes": 2}, "groups", False),
        (None, "division", False),
    ],
)
def test_lanes_that_no_device_has_are_refused(division: object, message: str, fits_schema: bool) -> None:
    content = json.loads(document().to_json())
    content["blocks"][0]["stages"][1]["division"] = division
    with pytest.raises(InvalidScheduleError, match=message):
        ScheduleDocument.from_json(json.dumps(content))
    if not fits_schema:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, SCHEMA)


def test_a_stage_that_is_one_operator_has_no_lanes_to_divide() -> None:
    merged = stage(("1",), ("2",), strategy=Strategy.MERGE)
    content = json.loads(document(stage(("0",)), merged, stage(("3",))).to_json())
    content["blocks"][0]["stages"][1]["division"] = {"lanes": 2, "groups": [[0], [1]]}
    with pytest.raises(InvalidScheduleError, match="a merge stage runs as one operator"):
        ScheduleDocument.from_json(json.dumps(content))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, SCHEMA)


def test_a_session_is_kept_and_has_all_lanes() -> None:
    found = document(stage(("0",)), stage(("1",), ("2",), strategy=Strategy.SESSION), stage(("3",)))
    content = json.loads(found.to_json())
    jsonschema.validate(content, SCHEMA)
    assert ScheduleDocument.from_json(json.dumps(content)).schedule == found.schedule
    content["blocks"][0]["stages"][1]["division"] = {"lanes": 2, "groups": [[0], [1]]}
    with pytest.raises(InvalidScheduleError, match="a session stage uses all lanes"):
        ScheduleDocument.from_json(json.dumps(content))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, SCHEMA)


def test_lanes_may_wait_for_each_other_but_not_in_a_cycle() -> None:
    """The graph is 0 -> 1 -> 3 and 0 -> 2 -> 3."""
    found = document(stage(("0", "1"), ("2", "3"), strategy=Strategy.LANES))
    content = json.loads(found.to_json())
    jsonschema.validate(content, SCHEMA)
    assert ScheduleDocument.from_json(json.dumps(content)).schedule == found.schedule
    check_operators(found.schedule, GRAPH)
    for groups in ((("1", "0"), ("2", "3")), (("0", "3", "1"), ("2",))):
        with pytest.raises(InvalidScheduleError, match="before an operator whose output it reads"):
            check_operators(document(stage(*groups, strategy=Strategy.LANES)).schedule, GRAPH)
    with pytest.raises(InvalidScheduleError, match="concurrently"):
        check_operators(document(stage(("0", "1"), ("2", "3"))).schedule, GRAPH)


def test_latencies_are_rounded_so_that_text_is_the_same_everywhere() -> None:
    assert '"predicted": 0.3333' in document().to_json()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "other", "format"),
        (["version"], 3, "version 3"),
        (["model", "sha256"], "xyz", "model.sha256"),
        (["model", "inputs", "x"], [1, -1], r"model.inputs\[...\]\[1\]"),
        (["device"], {"kind": "cpu"}, "device.name"),
        (["cost"], "guessed", "cost"),
        (["search", "pruning", "r"], 0, "search.pruning.r"),
        (["blocks"], {}, "blocks"),
        (["blocks", 0, "index"], 1, r"blocks\[0\].index is 1"),
        (["blocks", 0, "stages", 0, "strategy"], "x\n" * 500, r"^[^\n]*`\$.blocks\[0\].stages\[0\].strategy`[^\n]*$"),
        (["blocks", 0, "stages", 0, "groups"], [[]], r"blocks\[0\].stages\[0\].groups\[0\]"),
        (["blocks", 0, "stages", 0, "groups"], [["1"]], "'1' appears twice"),
        (["blocks", 0, "stages", 0, "strategy"], "merge", "merge stage"),
        (["blocks", 0, "stages", 0, "latency_us", "predicted"], -1, "predicted"),
        (["optimal"], "yes", None),
        (["proven"], "most", "proven"),
        (["proven"], True, "proven"),
        (["blocks", 0, "optimal"], 1, "optimal"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(path: list, value: object, message: str | None) -> None:
    content = json.loads(document().to_json())
    target = content
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    if message is not None:
        with pytest.raises(InvalidScheduleError, match=message):
            ScheduleDocument.from_json(json.dumps(content))
    if path[-1] != "index" and (path[-1] != "groups" or value == [[]]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{", "\x00\x01", b"\xff\xfe\xfa", "[" * 100_000, '{"a": ' * 50_000, '{"format": NaN}',
        '{"format": 1, "format": 1}', '{"x": 1e999}', '{"x": ' + "9" * 5000 + "}", '{"format": "iosched.schedule"}',
    ],
    ids=range(13),
)  # fmt: skip
def test_other_text_is_refused_with_one_line(text: str | bytes) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        ScheduleDocument.from_json(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**19), 10**19)
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


@given(st.data())
def test_any_value_in_one_place_is_read_or_refused(data: st.DataObject) -> None:
    content = json.loads(replace(document(), structure=CHAIN).to_json())
    *path, last = data.draw(st.sampled_from(list(places(content))[1:]))
    target = content
    for key in path:
        target = target[key]
    target[last] = data.draw(JSON)
    with suppress(InvalidScheduleError):
        text = ScheduleDocument.from_json(json.dumps(content)).to_json()
        assert ScheduleDocument.from_json(text.encode()).to_json() == text


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([stage(("0",)), stage(("1",), ("2",))], "leaves out operator '3'"),
        ([stage(("0",)), stage(("1",), ("2",)), stage(("3",)), stage(("9",))], "'9'"),
        ([stage(("1",)), stage(("0",), ("2",)), stage(("3",))], "'1' before '0'"),
        ([stage(("0",), ("1",)), stage(("2",)), stage(("3",))], "'1' concurrently with '0'"),
        ([stage(("1", "0")), stage(("2",)), stage(("3",))], "'1' before '0'"),
        (
            [stage(("0",)), stage(("1",), ("2",), strategy=Strategy.MERGE), stage(("3",))],
            "invalid merge stage: .*'1' cannot",
        ),
    ],
)
def test_a_schedule_of_other_operators_is_refused(stages: list[Stage], message: str) -> None:
    with pytest.raises(InvalidScheduleError, match=message):
        document(*stages).validate_for(GRAPH, "ab" * 32, {"x": (1,)})


def test_another_shape_type_or_digest_is_refused_by_name() -> None:
    document().validate_for(GRAPH, "ab" * 32, {"x": (1,)})
    with pytest.raises(InvalidScheduleError, match="shape 1, not 8x3"):
        document().validate_for(GRAPH, "ab" * 32, {"x": (8, 3)})
    with pytest.raises(InvalidScheduleError, match="input 'y'"):
        document().validate_for(GRAPH, "ab" * 32, {"x": (1,), "y": (1,)})
    with pytest.raises(InvalidScheduleError, match="made for float16"):
        replace(document(), dtype="float16").validate_for(GRAPH, "ab" * 32, {"x": (1,)})
    with pytest.raises(InvalidScheduleError, match="other weights"):
        document().validate_for(GRAPH, "cd" * 32, {"x": (1,)})


FORM = OperatorForm("Relu", (NodeForm("Relu", 14, (("alpha", "0.5"),), ("port 0",)),), ("float32 1",))
CHAIN = Structure(
    (("x", "float32 1"),), tuple(PlacedOperator(str(index), FORM, (index,)) for index in range(4)), (4,)
)  # fmt: skip


def test_the_structure_is_written_with_each_form_once_and_read_back() -> None:
    text = replace(document(), structure=CHAIN).to_json()
    content = json.loads(text)
    jsonschema.validate(content, SCHEMA)
    assert len(content["structure"]["forms"]) == 1
    assert content["structure"]["sha256"] == CHAIN.digest
    assert ScheduleDocument.from_json(text).structure == CHAIN
    assert ScheduleDocument.from_json(text).to_json() == text


def test_a_file_without_a_structure_is_read() -> None:
    """As written by earlier versions."""
    content = json.loads(document().to_json())
    assert "structure" not in content
    assert ScheduleDocument.from_json(json.dumps(content)).structure is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["sha256"], "ab" * 32, "structure.sha256 does not match the structure"),
        (["operators", 2, "form"], 1, r"structure.operators\[2\].form is 1, but there are 1 forms"),
        (["operators", 2, "reads"], [3], r"structure.operators\[2\].reads names a tensor that is computed later"),
        (["operators", 2, "reads"], [-1], r"structure.operators\[2\].reads"),
        (["operators", 2, "reads"], [True], r"structure.operators\[2\].reads"),
        (["outputs"], [5], "structure.outputs names a missing tensor"),
        (["forms", 0, "outputs"], [1], r"structure.forms\[0\].outputs"),
        (["inputs"], [], "computed later"),
    ],
)
def test_a_broken_structure_is_refused_with_the_place(path: list, value: object, message: str) -> None:
    content = json.loads(replace(document(), structure=CHAIN).to_json())
    target = content["structure"]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(InvalidScheduleError, match=message):
        ScheduleDocument.from_json(json.dumps(content))


def test_a_structure_that_contradicts_itself_is_another_structure() -> None:
    longer = replace(CHAIN, operators=(replace(CHAIN.operators[0], reads=(0, 0)), *CHAIN.operators[1:]))
    assert first_difference(longer, CHAIN) == "operator '0': expected 2 inputs, found 1"


@pytest.mark.slow
def test_a_large_form_shared_by_many_operators_is_read() -> None:
    """A file of some megabytes must not take minutes."""
    large = OperatorForm("Sum", tuple(NodeForm("Add", index, (), ()) for index in range(20_000)), ("float32 1",))
    many = Structure((), tuple(PlacedOperator(str(index), large, ()) for index in range(20_000)), ())
    text = replace(document(), structure=many).to_json()
    assert ScheduleDocument.from_json(text).structure.digest == many.digest
