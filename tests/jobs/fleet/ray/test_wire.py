"""Commands and events as lines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.fleet.ray.setup import Setup
from iosched.jobs.fleet.ray.wire import command_in, encoded, event_in, value_in
from iosched.jobs.fleet.transport import Call, Command, Event, Place, TransportUp

PATHS = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1).map(Path)
st.register_type_strategy(Path, PATHS)
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"])))


@given(st.from_type(Command))
def test_a_command_comes_back_from_its_line(command: Command) -> None:
    line = encoded(command)
    assert command_in(line) == command
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


@given(st.from_type(Event))
def test_an_event_comes_back_from_its_line(event: Event) -> None:
    assert event_in(encoded(event)) == event


@given(st.from_type(Setup))
def test_a_setup_comes_back_from_its_line(setup: Setup) -> None:
    assert value_in(encoded(setup), Setup) == setup


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello\n",
        b"[]",
        b'["Nothing",{}]',
        b'["Call",{"worker":"w"}]',
        b'["Call",{"worker":1,"call":"c","message":"","models":[]}]',
        encoded(Call("w", "c", b"{}"))[:-4],
        encoded(TransportUp()),
    ],
)
def test_what_is_no_command_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        command_in(line)


def test_nothing_but_json_is_written() -> None:
    message = bytes(range(256))
    name, fields = msgspec.json.decode(encoded(Call("w", "c", message, ("d",))))
    assert (name, fields["worker"], fields["models"]) == ("Call", "w", ["d"])
    assert Place("n", "a", "cpu") == value_in(encoded(Place("n", "a", "cpu")), Place)
