"""A space says what is wrong with it when it is made, not in the middle of a study."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import onnx
import pytest
from small_models import data

from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.models.mutation.graph import view_of
from iosched.models.spaces.pelee import SPACE
from iosched.models.spaces.redraw import Redraw
from iosched.models.spaces.space import Space, find_space
from iosched.models.zoo.mnasnet import sampled

MUTATORS = SPACE.mutators


def test_a_space_needs_mutators_that_are_some() -> None:
    with pytest.raises(UsageError, match="no mutators"):
        Space("empty", ())
    with pytest.raises(UsageError, match="str is no mutator"):
        Space("wrong", ("Conv",))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="two mutators are called 'pelee'"):
        Space("twice", (*MUTATORS, *MUTATORS))
    with pytest.raises(UsageError, match="needs a name"):
        Space("", MUTATORS)


def test_several_base_models_need_names_apart() -> None:
    def small(pixels: int) -> onnx.ModelProto:
        return MUTATORS[0].base_proto(pixels)  # type: ignore[attr-defined, no-any-return]

    def large(pixels: int) -> onnx.ModelProto:
        return small(2 * pixels)

    both = Space("both", MUTATORS, bases=[small, large])  # type: ignore[arg-type]
    assert [model.name for model in both.at(32).begun(None)] == ["small", "large"]
    for wrong in ({"bases": [small, small]}, {"bases": [small], "base": small}, {"bases": [partial(small)]}):
        with pytest.raises(UsageError, match="functions of different names"):
            Space("wrong", MUTATORS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="whole number from 1 on"):
        Space("wrong", MUTATORS, max_mutations=0)


def test_the_base_model_has_the_pixels_that_are_asked_for() -> None:
    assert SPACE.pixels == 64
    assert find_space("builtin:pelee:48").base_model().bindings == {"input": (1, 3, 48, 48)}
    with pytest.raises(UsageError, match="32 to 1024 pixels in width and height, not 16"):
        SPACE.at(16)


def test_a_space_without_a_base_asks_for_one() -> None:
    lent = replace(SPACE, base=None)
    with pytest.raises(UsageError, match="brings no base model: name one"):
        lent.base_model()
    with pytest.raises(UsageError, match="brings no base model"):
        lent.at(64)


def test_a_space_that_is_written_whole_fits_its_own_base_alone() -> None:
    (mutator,) = MUTATORS
    assert isinstance(mutator, Redraw)
    own = load_model(data(mutator.base_proto(32)))
    assert [node.name for (node,) in mutator.match(view_of(own))] == ["output"]
    assert mutator.match(view_of(load_model(data(sampled(0, 32))))) == []


def test_a_base_in_which_nothing_can_be_changed_is_refused() -> None:
    other = load_model(data(sampled(0, 32)), name="other")
    with pytest.raises(
        UsageError, match="nothing in model 'other' can be changed by space 'pelee'; it has a base model"
    ):
        SPACE.begun(other)
    own = SPACE.at(32).base_model()
    assert SPACE.begun(own) == (own,)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("builtin:mnasent", "no space in the box is called 'mnasent'; did you mean mnasnet or nasnet?"),
        ("builtin:x", "there are mnasnet, nasnet, darts, enas, spos, inception, pelee"),
        ("builtin:pelee:big", "'big' is no number of pixels; write builtin:pelee:64"),
        ("pelee", "no file is called 'pelee'; the space in the box is builtin:pelee"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_close_ones(source: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_space(source)
    assert message in str(caught.value)
