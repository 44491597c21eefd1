"""Records may be untrusted: invalid ones are refused with a reason."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import Custom, exported
from onnx import helper
from small_models import data, proto_of, weight

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Edit
from iosched.models.mutation.mutator import Targets, by_name
from iosched.models.mutation.record import MAX_ENTRIES, MUTATION_KEY, Record, record_of
from iosched.models.mutation.variant import Variant, replay, variant_of

node = helper.make_node


def base(seed: int = 0) -> Model:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])]
    weights = {"w": weight(4, 3, 1, 1, seed=seed), "v": weight(4, 4, 1, 1)}
    return load_model(data(proto_of(nodes, {"x": [1, 3, 4, 4]}, ["y"], weights)), name="base")


def change(targets: Targets, edit: Edit) -> None:
    """Every primitive once."""
    kernel = int(edit.choose([1, 3], "kernel"))
    attributes = {"pads": (kernel // 2,) * 4}
    made = edit.create("Conv", ["b"], name="n", attributes=attributes, weights={1: (4, 4, kernel, kernel)})
    edit.replace("y", weights={1: (2, 4, 1, 1)}, attributes={"group": 1})
    edit.connect(made.name, "y", 0)
    edit.connect_output(edit.create("Relu", ["y"], name="z").name, "y")
    edit.delete("b")
    edit.create("Tanh", ["a"], name="b")


def recorded() -> Variant:
    return variant_of(base(), [Custom("own", by_name("b"), change)], lambda _: 1)


def test_a_record_survives_being_written() -> None:
    record = recorded().record
    assert Record.from_json(record.to_json()) == record
    assert Record.from_json(record.to_json().encode()) == record
    assert (record.name, record.seeded, record.sliced) == ("base", ("n/W",), {"y/W": "v"})
    assert {entry["do"] for entry in json.loads(record.to_json())["record"]["entries"]} == {
        "mutate", "choose", "create", "replace", "connect", "return", "delete",
    }  # fmt: skip


def test_a_records_claims_about_weights_are_not_trusted() -> None:
    variant = recorded()
    text = json.loads(variant.record.to_json())
    text["record"].update(seeded=["everything"], sliced={"a": "b"})
    again = replay(base(), Record.from_json(json.dumps(text)))
    assert exported(again) == exported(variant.model)
    assert record_of(again.proto) == variant.record


def test_a_record_of_another_base_is_refused() -> None:
    with pytest.raises(UsageError, match=r"another base model: 'base' with digest .*\n.*recorded, with its weights"):
        replay(base(seed=1), recorded().record)


GARBAGE: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "not a mutation record"),
    "no text": (b"\xff\xfe\x00", "not a mutation record"),
    "something else": ('{"format": "iosched.schedule", "version": 1}', "its format is 'iosched.schedule'"),
    "of the future": ('{"format": "iosched.mutation", "version": 2}', "version 2; this iosched reads version 1"),
    "deep": ("[" * 100_000, "not a mutation record"),
    "long": (" " * (2**26 + 1), "is too long"),
    "a choice of nothing": (
        json.dumps(
            {
                "format": "iosched.mutation",
                "version": 1,
                "record": {
                    "name": "",
                    "base": "",
                    "entries": [{"do": "choose", "question": "what", "candidates": [1, 2], "index": 2}],
                },
            }
        ),
        "'what' chooses none of its candidates",
    ),
    "many entries": (
        json.dumps(
            {
                "format": "iosched.mutation",
                "version": 1,
                "record": {"name": "", "base": "", "entries": [{"do": "delete", "node": "a"}] * (MAX_ENTRIES + 1)},
            }
        ),
        "can have 10,000 entries, not 10,001",
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_invalid_records_are_refused(what: str) -> None:
    text, message = GARBAGE[what]
    with pytest.raises(InvalidModelError, match=message):
        Record.from_json(text)


def test_a_file_with_a_broken_record_has_none() -> None:
    proto = recorded().model.proto
    for item in proto.metadata_props:
        if item.key == MUTATION_KEY:
            item.value = item.value[:-1]
    assert record_of(proto) is None


CREATED = {"do": "create", "type": "Relu", "inputs": ["a"], "outputs": ["n"], "attributes": {}, "weights": {}}
CONV = CREATED | {"type": "Conv", "inputs": ["b"]}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a node that is not there": ({"do": "delete", "node": "nobody"}, "no node 'nobody'"),
    "a tensor that is not there": ({"do": "connect", "source": "q", "node": "y", "place": 0}, "cannot read 'q'"),
    "a cycle": ({"do": "connect", "source": "y", "node": "a", "place": 0}, "computed from its own output"),
    "nothing left to return": ({"do": "delete", "node": "y"}, "output 'y' still refers to 'y', which was deleted"),
    "a name twice": (CREATED | {"outputs": ["b"]}, "cannot have the name 'b'"),
    "two outputs of one name": (CREATED | {"outputs": ["n", "n"]}, "need different names"),
    "an operator that is not there": (CREATED | {"type": "Nothing"}, "no operator 'Nothing'"),
    "huge weights": (CONV | {"weights": {"1": {"shape": [2**15, 2**15, 9]}}}, "new weights take .* bytes"),
    "a strange type": (CONV | {"weights": {"1": {"shape": [1], "dtype": "object"}}}, "unsupported type 'object'"),
    "too few bytes": (CONV | {"weights": {"1": {"shape": [4], "data": "AAAA"}}}, "has 3 bytes; its shape needs 16"),
    "no base64": (CONV | {"weights": {"1": {"shape": [4], "data": "?"}}}, "constant is broken"),
    "no groups": (
        {"do": "replace", "node": "y", "type": "Conv", "inputs": ["b", "v"], "attributes": {"group": 0}, "weights": {}},
        "Conv node 'y' does not fit",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_record_that_does_not_fit_its_base_is_refused(what: str) -> None:
    entry, message = BROKEN[what]
    with pytest.raises(InvalidModelError, match=f"record is broken.*: .*{message}"):
        replay(base(), Record.from_json(text_of([entry])))


def text_of(entries: list[dict[str, Any]]) -> str:
    record = {"name": "base", "base": base().digest, "entries": entries}
    return json.dumps({"format": "iosched.mutation", "version": 1, "record": record})


ENTRIES = json.loads(recorded().record.to_json())["record"]["entries"]
NAMES = st.sampled_from(["a", "b", "y", "x", "w", "n", "z", ""])
VALUES = st.one_of(
    st.integers(-3, 2**40), st.floats(), st.text(max_size=3), st.none(), st.lists(NAMES, max_size=3), NAMES,
    st.dictionaries(NAMES | st.sampled_from(["0", "1", "2"]), st.integers(-1, 5) | NAMES, max_size=2),
)  # fmt: skip


@given(st.data())
def test_any_record_is_replayed_or_refused(given_data: st.DataObject) -> None:
    entries = given_data.draw(st.permutations(ENTRIES) | st.just(ENTRIES), "entries")
    entries = [dict(entry) for entry in entries[: given_data.draw(st.integers(1, len(entries)), "count")]]
    entry = given_data.draw(st.sampled_from(entries), "entry")
    key = given_data.draw(st.sampled_from(sorted(entry)), "key")
    entry[key] = given_data.draw(VALUES, "value")
    with suppress(InvalidModelError):
        exported(replay(BASE, Record.from_json(text_of(entries))))


BASE = base()
