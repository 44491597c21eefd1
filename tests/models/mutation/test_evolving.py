"""Mutators applied to their own results, from one of several base models."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import at_random, check, mutators
from small_models import branches, data, models

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Question
from iosched.models.mutation.mutator import InsertingMutator, Mutator, OperatorMutator, by_type, chain
from iosched.models.mutation.variant import Variant, replay, variant_of

DEEPER = InsertingMutator("deeper", by_type("Relu"), ["conv3_relu", "dconv3_relu"])
OTHER = OperatorMutator("other", chain("Conv", "Relu"), ["conv1_relu", "conv5_relu"])


def base(channels: int = 8, name: str = "branches") -> Model:
    return load_model(branches(channels=channels).SerializeToString(), name=name)


def answering(*choices: object) -> tuple[list[str], Callable[[Question], int]]:
    """The names of the questions asked, and a function that answers with these choices, then with the last."""
    asked, left = list[str](), list(choices)

    def answer(question: Question) -> int:
        asked.append(question.name)
        return question.candidates.index(left.pop(0)) if left else len(question.candidates) - 1

    return asked, answer


@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_repeated_mutations_make_a_model_that_runs_and_replays(most: int, seed: int) -> None:
    bases = [base(8, "narrow"), base(16, "wide")]
    made = variant_of(bases, [DEEPER, OTHER], at_random(seed), most)
    check(made)
    again = variant_of(bases, [DEEPER, OTHER], at_random(seed), most)
    assert (again.model.digest, again.record) == (made.model.digest, made.record)


@pytest.mark.slow
@given(models(), mutators(), st.integers(0, 99))
def test_any_mutators_on_any_small_model(proto: onnx.ModelProto, made_by: list[Mutator], seed: int) -> None:
    model = load_model(data(proto), name="small")
    random = Random(seed)
    try:
        made = variant_of(model, made_by, lambda question: random.randrange(len(question.candidates)), 4)
    except InvalidModelError:  # sums of tensors whose shapes no longer match
        return
    check(made)


def test_questions_carry_the_number_of_the_application_from_the_second_on() -> None:
    asked, answer = answering("wide", 3, "deeper", 1, "conv3_relu", "deeper", "c/conv3_relu", 0, "other")
    made = variant_of([base(8, "narrow"), base(16, "wide")], [DEEPER, OTHER], answer, 3)
    assert [name.partition("{")[0] for name in asked] == [
        *("space/base", "space/mutations", "space/mutator", "deeper[c]/inserted", "deeper[c]/layer0"),
        *("space#2/mutator", "space#2/place", "deeper#2[c/conv3_relu]/inserted"),
        *("space#3/mutator", "space#3/place", "other[c/conv3_relu/linear]/layer"),
    ]
    assert made.choices["space/base{narrow,wide}"] == "wide"
    assert made.choices["space/mutations{0,1,2,3}"] == 3
    assert set(asked) < set(made.choices)  # the only place is not asked for


def test_a_mutator_changes_its_own_results() -> None:
    _, answer = answering(2, 1, "conv3_relu", "c/conv3_relu", 1, "dconv3_relu")
    made = variant_of(base(), [DEEPER], answer, 2)
    assert "c/conv3_relu/dconv3_relu" in {node.name for node in made.model.proto.graph.node}
    check(made)


def test_no_mutation_leaves_the_base() -> None:
    _, answer = answering(0)
    made = variant_of(base(), [DEEPER, OTHER], answer, 5)
    assert (made.record.primitives, made.model.structure) == ((), base().structure)


def test_mutations_end_where_nothing_matches() -> None:
    asked, answer = answering(4)
    variant_of(base(), [InsertingMutator("none", by_type("Softmax"), ["conv3"])], answer, 4)
    assert asked == ["space/mutations{0,1,2,3,4}"]


def test_a_record_is_replayed_only_on_the_chosen_base() -> None:
    narrow, wide = base(8, "narrow"), base(16, "wide")
    made: Variant = variant_of([narrow, wide], [DEEPER], lambda question: len(question.candidates) - 1, 2)
    assert made.base is wide
    assert replay(wide, made.record).digest == made.model.digest
    with pytest.raises(UsageError, match="the record belongs to another base model: 'wide'"):
        replay(narrow, made.record)
