"""Compares a composed model with its members, each run alone by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from small_models import feeds_for

from iosched.models.composition.members import Member
from iosched.models.model import Model
from iosched.runtime.reference import Reference


def assert_as_alone(
    whole: Model, members: Sequence[Member], models: Mapping[str, Model], *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Every output of every member is what the member computes alone, from the file that it was loaded from."""
    feeds = feeds_for(whole)
    with Reference(whole) as together:
        got = together.run(feeds)
    assert set(got) == {name for member in members for name in member.outputs.values()}
    for member in members:
        own = {name: feeds[called] for name, called in member.inputs.items()}
        with Reference(models[member.name]) as alone:
            want = alone.run(own)
        assert want.keys() == member.outputs.keys()
        for name, value in want.items():
            scale = max(1.0, float(np.abs(value).max(initial=0))) if value.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(got[member.outputs[name]], value, rtol=rtol, atol=atol * scale)
