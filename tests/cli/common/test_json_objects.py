"""JSON objects of results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from iosched.cli.common.json_objects import json_object, json_value


@dataclass(frozen=True)
class Part:
    """A part of a result."""

    low_us: float
    is_whole: bool
    settings: dict[str, int]


@dataclass(frozen=True)
class Whole:
    """A result."""

    name: str
    part: Part | None


def test_keys_name_attributes_of_parts_and_additional_values() -> None:
    source = Whole("a", Part(1.0, True, {"lanes": 2}))
    keys = "name place.low=part.low_us lanes=part.settings.lanes missing=part.settings.layout place.more"
    found = {"name": "a", "place": {"low": 1.0, "more": 3}, "lanes": 2, "missing": None}
    assert json_object(source, keys, more=3) == found
    assert json_object(Whole("b", None), "low=part.low_us") == {"low": None}


def test_dataclasses_are_objects_of_their_fields() -> None:
    source = {"whole": Whole("a", Part(math.inf, True, {})), 1: [Path("f.onnx"), (math.nan, 2.5)]}
    part = {"low_us": None, "whole": True, "settings": {}}
    assert json_value(source) == {"whole": {"name": "a", "part": part}, "1": ["f.onnx", [None, 2.5]]}
