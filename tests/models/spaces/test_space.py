"""A space reports its errors when it is created."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import onnx
import pytest
from small_models import data

from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.models.mutation.graph_view import view_of
from iosched.models.spaces.pelee import SPACE
from iosched.models.spaces.redraw import Redraw
from iosched.models.spaces.space import Space, find_space
from iosched.models.zoo.mnasnet import sampled

MUTATORS = SPACE.mutators


def test_a_space_needs_a_name_and_valid_mutators() -> None:
    with pytest.raises(UsageError, match="no mutators"):
        Space("empty", ())
    with pytest.raises(UsageError, match="str is not a mutator"):
        Space("wrong", ("Conv",))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="two mutators have the name 'pelee'"):
        Space("twice", (*MUTATORS, *MUTATORS))
    with pytest.raises(UsageError, match="needs a name"):
        Space("", MUTATORS)


def test_several_base_models_need_different_names() -> None:
    def small(pixels: int) -> onnx.ModelProto:
        return MUTATORS[0].base_proto(pixels)  # type: ignore[attr-defined, no-any-return]

    def large(pixels: int) -> onnx.ModelProto:
        return small(2 * pixels)

    both = Space("both", MUTATORS, bases=[small, large])  # type: ignore[arg-type]
    assert [model.name for model in both.at(32).begun(None)] == ["small", "large"]
    for wrong in ({"bases": [small, small]}, {"bases": [small], "base": small}, {"bases": [partial(small)]}):
        with pytest.raises(UsageError, match="functions with different names"):
            Space("wrong", MUTATORS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="integer of at least 1"):
        Space("wrong", MUTATORS, max_mutations=0)


def test_the_base_model_has_the_requested_image_size() -> None:
    assert SPACE.pixels == 64
    assert find_space("builtin:pelee:48").base_model().bindings == {"input": (1, 3, 48, 48)}
    with pytest.raises(UsageError, match="32 to 1024 pixels a side, not 16"):
        SPACE.at(16)


def test_a_space_without_a_base_asks_for_one() -> None:
    lent = replace(SPACE, base=None)
    with pytest.raises(UsageError, match="has no base model; pass one"):
        lent.base_model()
    with pytest.raises(UsageError, match="has no base model"):
        lent.at(64)


def test_a_redrawn_space_matches_only_its_own_base() -> None:
    (mutator,) = MUTATORS
    assert isinstance(mutator, Redraw)
    own = load_model(data(mutator.base_proto(32)))
    assert [node.name for (node,) in mutator.match(view_of(own))] == ["output"]
    assert mutator.match(view_of(load_model(data(sampled(0, 32))))) == []


def test_a_base_that_no_mutator_matches_is_refused() -> None:
    other = load_model(data(sampled(0, 32)), name="other")
    with pytest.raises(UsageError, match=r"no mutator of space 'pelee' applies to model 'other'\.\nOmit the model"):
        SPACE.begun(other)
    own = SPACE.at(32).base_model()
    assert SPACE.begun(own) == (own,)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("builtin:mnasent", "there is no built-in space 'mnasent'; did you mean mnasnet or nasnet?"),
        ("builtin:x", "choose from mnasnet, nasnet, darts, enas, spos, inception, pelee"),
        ("builtin:pelee:big", "'big' is not a number of pixels; write builtin:pelee:64"),
        ("pelee", "there is no file 'pelee'; the built-in space is builtin:pelee"),
    ],
)
def test_an_unknown_name_is_reported_with_similar_ones(source: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_space(source)
    assert message in str(caught.value)
