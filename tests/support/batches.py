"""Batches the equal parts of models, and compares the result with each model alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from small_models import data, feeds_for, proto_of

from iosched.models.batching.ensemble import Group
from iosched.models.batching.operator_batch import ensemble_of
from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import Composition, compose
from iosched.models.composition.members import Member
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.reference import Reference
from iosched.scheduler.batching.costs import EqualGains
from iosched.scheduler.batching.planner import planned

Weights = Mapping[str, np.ndarray]


def greedy_groups(whole: Composition) -> tuple[Group, ...]:
    """Groups of all equal operators, as greedy batching forms them."""
    return planned(ensemble_of(whole), EqualGains(), "greedy").all_groups()


@dataclass(frozen=True, eq=False)
class Batch:
    """Models, their composition, and the model in which they are batched."""

    models: Mapping[str, Model]
    whole: Composition
    model: Model

    @property
    def types(self) -> Counter[str]:
        """How many nodes of each type the batched model has."""
        return Counter(node.op_type for node in self.model.proto.graph.node)


def batch(
    protos: Sequence[onnx.ModelProto],
    shared: Collection[str] = (),
    keep: Callable[[int], bool] = lambda index: True,
    batch_size: int | None = None,
) -> Batch:
    """The models batched, after their outputs were compared with those of each model alone.

    `keep` says which of the groups, by their numbers, are made.
    """
    models = {
        f"m{index}": load_model(data(proto), name=f"m{index}", batch_size=batch_size)
        for index, proto in enumerate(protos)
    }
    whole = compose(models, shared)
    groups = [group for index, group in enumerate(greedy_groups(whole)) if keep(index)]
    model = batched(whole.model, groups)
    assert_as_alone(model, whole.members, models)
    assert model.graph.inputs == whole.model.graph.inputs
    assert model.graph.outputs == whole.model.graph.outputs
    return Batch(models, whole, model)


def variants(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
    weights: Callable[[int], Weights],
    count: int = 3,
    **settings: int,
) -> list[onnx.ModelProto]:
    """Models of the same nodes, with weights that depend on the model's number."""
    return [proto_of(nodes, inputs, outputs, weights(seed), **settings) for seed in range(count)]


def assert_as_alone(
    whole: Model, members: Sequence[Member], models: Mapping[str, Model], *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Every output of every member equals that of the member alone, from the file that it was loaded from."""
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
