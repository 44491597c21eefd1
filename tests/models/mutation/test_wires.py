"""Wires that follow a graph from change to change are those of the graph at the end."""

from __future__ import annotations

import onnx
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.mutation.wires import Wires, wires_of


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, tuple[str, ...]]]:
    """Nodes by name with what they read; a name that comes again is another node in its place, or none with ""."""
    names = st.sampled_from("abcd")
    return draw(st.lists(st.tuples(names, st.lists(st.sampled_from(["", *"abcdx"]), max_size=3).map(tuple))))


@given(changes())
def test_following_changes_is_looking_again(changed: list[tuple[str, tuple[str, ...]]]) -> None:
    protos: dict[str, onnx.NodeProto] = {}
    wires = Wires({}, {})
    for name, inputs in changed:
        if name in protos:
            wires = wires.without(protos.pop(name))
        if inputs != ("",):
            protos[name] = onnx.helper.make_node("Sum", inputs, [name, f"{name}/2"])
            wires = wires.joined(protos[name])
    again = wires_of(protos)
    assert dict(wires.producers) == dict(again.producers)
    assert dict(wires.readers) == dict(again.readers)
