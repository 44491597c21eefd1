"""Mutators made of functions, random ones, ways to answer their questions, and the invariants of every variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from hypothesis import strategies as st
from small_models import feeds_for, run

from iosched.models.export import write_model
from iosched.models.graph import Scalar
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Answer, Edit, Question
from iosched.models.mutation.graph_view import GraphView
from iosched.models.mutation.mutator import (
    InputMutator,
    InsertingMutator,
    Match,
    Mutator,
    OperatorMutator,
    Targets,
    by_type,
    chain,
)
from iosched.models.mutation.record import Record, record_of
from iosched.models.mutation.variant import Variant, replay
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import stage_signature


@dataclass(frozen=True)
class Custom:
    """A mutator made of a function."""

    name: str
    where: Match
    change: Callable[[Targets, Edit], object]

    def match(self, graph: GraphView) -> Sequence[Targets]:
        return self.where(graph)

    def mutate(self, targets: Targets, edit: Edit) -> None:
        self.change(targets, edit)


def exported(model: Model) -> bytes:
    found = write_model(model.proto, model.weights, None)
    assert found is not None
    return found


def wider(targets: Targets, edit: Edit) -> None:
    """A convolution gets more or fewer channels, and its readers get weights for them."""
    (conv,) = targets
    shape, results = edit.graph.shape(conv.inputs[1]), edit.graph.shape(conv.name)[1]
    channels = int(edit.choose([results, results + 4, results // 2 or results + 1], "channels"))
    if conv.attributes.get("group", 1) != 1 or channels == results:
        return
    weights = {1: (channels, *shape[1:])}
    if len(conv.inputs) > 2:
        weights[2] = (channels,)
    edit.replace(conv, weights=weights)
    edit.refit(conv.name)


LAYERS = ("keep", "conv1", "conv3", "dconv3_relu", "max_pool3", "average_pool2", "identity", "conv5_relu")
WHERE = (by_type("Conv"), by_type("Relu"), by_type("MaxPool", "Add", "Concat"), chain("Conv", "Relu"))


@st.composite
def mutators(draw: st.DrawFn, most: int = 4) -> list[Mutator]:
    """Some mutators, which may change each other's results."""
    found: list[Mutator] = []
    for index in range(draw(st.integers(1, most))):
        kind, where, name = draw(st.sampled_from("ions")), draw(st.sampled_from(WHERE)), f"m{index}"
        if kind == "i":
            found.append(InputMutator(name, where))
        elif kind == "o":
            found.append(OperatorMutator(name, where, LAYERS))
        elif kind == "n":
            found.append(InsertingMutator(name, where, LAYERS[1:], most=2))
        else:
            found.append(Custom(name, by_type("Conv"), wider))
    return found


def check(variant: Variant) -> None:
    """Checks the invariants of a variant."""
    base, model, file = variant.base, variant.model, exported(variant.model)
    onnx.checker.check_model(onnx.load_from_string(file), full_check=True)
    outputs = run(file, feeds_for(model))
    assert {name: array.shape for name, array in outputs.items()} == {
        name: model.graph.tensor[name].shape for name in model.graph.outputs
    }
    assert all(np.isfinite(array).all() for array in outputs.values())
    again = load_model(file, name=model.name)
    assert again.digest == model.digest
    assert record_of(again.proto) == variant.record == Record.from_json(variant.record.to_json())
    assert exported(replay(base, variant.record)) == file
    _check_unmodified(variant)


def _check_unmodified(variant: Variant) -> None:
    """Operators of unmodified nodes cost what they cost in the base: their signatures are the same."""
    before = {operator.nodes: operator for operator in variant.base.graph.operators}
    for operator in variant.model.graph.operators:
        if variant.unmodified.issuperset(operator.nodes) and operator.nodes in before:
            graphs = (variant.base.graph, before[operator.nodes].name), (variant.model.graph, operator.name)
            one, other = (stage_signature(graph, Stage(Strategy.CONCURRENT, ((name,),))) for graph, name in graphs)
            assert one == other


def least(question: Question) -> int:
    return 0


def greatest(question: Question) -> int:
    return len(question.candidates) - 1


def at_random(seed: int) -> Answer:
    random = Random(seed)
    return lambda question: random.randrange(len(question.candidates))


def by_name(chosen: Mapping[str, Scalar]) -> Answer:
    """Answers by the end of the questions' names: "stage1/kernel" of "mnasnet[output]/stage1/kernel{3,5}"."""
    return lambda question: question.candidates.index(chosen[question.name.partition("]/")[2].partition("{")[0]])
