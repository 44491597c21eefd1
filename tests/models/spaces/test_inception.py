"""Paths that replace the middle one of three convolutions."""

from __future__ import annotations

from collections import Counter

import pytest
from mutations import by_name, check
from networks import zoo_model
from small_models import data

from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Question
from iosched.models.mutation.graph_view import view_of
from iosched.models.mutation.variant import variant_of
from iosched.models.spaces.inception import SPACE, InceptionMutator
from iosched.models.zoo.network import Network

BASE = SPACE.at(32).base_model()


def chain(stride: int, last_groups: int = 1) -> Model:
    net = Network("chain")
    x = net.conv(net.input(3, 16), 8, 3, "first", padding=1)
    x = net.conv(x, 12, 5, "middle", padding=2, stride=stride)
    return load_model(data(net.finish(net.conv(x, 6, 3, "last", groups=last_groups, relu=False))))


def test_the_number_of_paths_determines_the_questions() -> None:
    asked: list[str] = []

    def answer(question: Question) -> int:
        asked.append(question.name)
        return {"paths": 1}.get(question.name.partition("]/")[2].partition("{")[0], 0)

    variant_of(BASE, SPACE.mutators, answer)
    one = ["paths{2,3,4,5}", *(f"way{way}{{conv,dconv,pool}}" for way in (1, 2, 3))]
    assert asked == [f"inception[block{block}/first/conv]/{each}" for block in (1, 2, 3) for each in one]


def test_paths_of_each_kind_replace_the_middle_convolution() -> None:
    model = chain(stride=1)
    variant = variant_of(model, SPACE.mutators, by_name({"paths": 3, "way1": "conv", "way2": "dconv", "way3": "pool"}))
    check(variant)
    graph = view_of(variant.model)
    assert Counter(node.type for node in graph.nodes) == Counter(Conv=4, Relu=3, MaxPool=1, Concat=1)
    # 12 channels of the replaced convolution, and twice the 8 of the input.
    assert graph.shape("middle/conv/ways") == (1, 12 + 8 + 8, 16, 16)
    assert graph.shape("last") == (1, 6, 14, 14)
    assert "first" in variant.unmodified


def test_bottlenecks_that_keep_the_images_size_are_chains() -> None:
    targets = InceptionMutator().match(view_of(zoo_model("resnet50")))
    assert len(targets) == 16 - 3
    assert all(middle.name.endswith("/conv2/conv") for _, _, middle, _, _ in targets)


@pytest.mark.parametrize("model", [chain(stride=2), chain(stride=1, last_groups=2)], ids=["strided", "grouped"])
def test_chains_where_paths_do_not_fit_are_not_matched(model: Model) -> None:
    assert InceptionMutator().match(view_of(model)) == []
