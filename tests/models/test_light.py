"""The light models of the onnx package get weights that reveal a wrong schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iosched.models.errors import DeviceError
from iosched.models.load import load_model
from iosched.models.zoo import light
from iosched.models.zoo.light import light_model
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference


def test_scores_differ_and_are_reproducible() -> None:
    model = load_model(light_model("light_squeezenet").SerializeToString())
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as first, Reference(light_model("squeezenet").SerializeToString()) as second:
        (scores,), (again,) = (list(each.run(inputs).values()) for each in (first, second))
    assert scores.shape == (1, 1000, 1, 1)
    assert scores.std() > 0.01 * abs(scores).max() > 0
    np.testing.assert_array_equal(scores, again)


def test_a_softmax_at_the_end_is_left_out() -> None:
    types = {name: light_model(name).graph.node[-1].op_type for name in ("shufflenet", "squeezenet")}
    assert "Softmax" not in types.values()


def test_missing_light_models_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    light._built.cache_clear()
    monkeypatch.setattr(light, "_FOLDER", tmp_path)
    with pytest.raises(DeviceError, match=r"light_squeezenet\.onnx.*pip install"):
        light_model("squeezenet")
    monkeypatch.undo()
    assert light_model("squeezenet").graph.node
