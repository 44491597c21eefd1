"""For any combination of mutators and any choices, variants are models like any other."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import onnx
import pytest
from batches import assert_as_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import check, mutators
from networks import zoo_model
from small_models import data, models

from iosched.models.composition.compose import compose
from iosched.models.errors import InvalidModelError, IoschedError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Question
from iosched.models.mutation.mutator import InsertingMutator, Mutator, by_name
from iosched.models.mutation.variant import Variant, variant_of
from iosched.models.zoo import nasnet_a
from iosched.models.zoo.mnasnet import sampled

LIGHT = ("light_inception_v1", "light_resnet50")


def variant(base: Model, made_by: list[Mutator], seed: int, share: float) -> Variant | None:
    """A variant in which about `share` of the questions are not answered by the first candidate.

    None where the mutators break the shapes of a sum, which is reported as an error.
    """
    random = Random(seed)

    def answer(question: Question) -> int:
        return random.randrange(len(question.candidates)) if random.random() < share else 0

    try:
        return variant_of(base, made_by, answer)
    except InvalidModelError as error:
        return refused(error)


def refused(error: InvalidModelError) -> None:
    assert isinstance(error.__cause__, IoschedError)
    assert re.match(r"mutator 'm\d' at '.+' after m\d\[", str(error))


@pytest.mark.slow
@given(models(), mutators(), st.integers(0, 99))
def test_variants_of_small_models(proto: onnx.ModelProto, made_by: list[Mutator], seed: int) -> None:
    made = variant(load_model(data(proto), name="small"), made_by, seed, share=0.5)
    if made is not None:
        check(made)


@pytest.mark.parametrize("name", ["light_squeezenet", pytest.param("light_shufflenet", marks=pytest.mark.slow)])
@settings(max_examples=2)
@given(mutators(), st.integers(0, 99))
def test_variants_of_light_models(name: str, made_by: list[Mutator], seed: int) -> None:
    made = variant(loaded(name), made_by, seed, share=0.1)
    if made is not None:
        check(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LIGHT, "nasnet", "mnasnet"])
@settings(max_examples=3)
@given(mutators(), st.integers(0, 99))
def test_variants_of_networks(name: str, made_by: list[Mutator], seed: int) -> None:
    made = variant(loaded(name), made_by, seed, share=0.1)
    if made is not None:
        check(made)


@cache
def loaded(name: str) -> Model:
    """A light model, or a small one of cells as the bundled networks have them."""
    if name == "mnasnet":
        return load_model(data(sampled(3, 64)), name=name)
    if name == "nasnet":
        return load_model(data(nasnet_a.build(cells_per_stage=2)), name=name)
    return zoo_model(name)


def test_shared_parts_of_variant_and_base_are_computed_once() -> None:
    base = loaded("light_squeezenet")
    made = variant_of(base, [InsertingMutator("late", by_name("fire9/*"), ["conv3"])], lambda question: 1)
    assert len(made.unmodified) > 0.8 * len(base.proto.graph.node)
    both = compose({"base": base, "variant": made.model}, [spec.name for spec in base.graph.inputs])
    assert_as_alone(both.model, both.members, {"base": base, "variant": made.model})
    assert len(both.model.graph.operators) < 1.3 * len(base.graph.operators)
