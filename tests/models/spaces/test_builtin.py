"""Built-in spaces: their points are runnable models, and their sizes are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import at_random, by_name, check, greatest, least
from small_models import data

from iosched.models.graph import Scalar
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.edit import Answer
from iosched.models.mutation.variant import Variant, variant_of
from iosched.models.spaces import darts, enas, inception, mnasnet, nasnet, pelee
from iosched.models.spaces.redraw import Redraw
from iosched.models.spaces.space import NAMES, builtin_space
from iosched.models.zoo.mnasnet import MOBILENET_V2, WIDTHS, rounded, sampled, sampled_stages
from iosched.models.zoo.network import Network


def every(plan: Callable[..., Any]) -> Iterator[Any]:
    """The results of `plan(choose)` for all answers, each once, even where answers depend on each other."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        path = waiting.pop()
        sizes: list[int] = []
        found = plan(_following(path, sizes))
        yield found
        for place in range(len(path), len(sizes)):
            before = (*path, *[0] * (place - len(path)))
            waiting.extend((*before, index) for index in range(1, sizes[place]))


def _following(path: Sequence[int], sizes: list[int]) -> Callable[[Sequence[Scalar], str], Scalar]:
    def choose(candidates: Sequence[Scalar], what: str) -> Scalar:
        sizes.append(len(candidates))
        return candidates[path[len(sizes) - 1] if len(sizes) <= len(path) else 0]

    return choose


SIZE = 32
SPACES = [builtin_space(name) for name in NAMES]
DRAWN = [space for space in SPACES if isinstance(space.mutators[0], Redraw)]


@cache
def base(name: str) -> Model:
    return builtin_space(name).at(SIZE).base_model()


def made(name: str, answer: Answer) -> Variant:
    return variant_of(base(name), builtin_space(name).mutators, answer)


def drawn(name: str, answer: Answer) -> Model:
    """The network that a space writes for these answers, without any part of the base."""
    (mutator,) = builtin_space(name).mutators
    assert isinstance(mutator, Redraw)
    questions = iter(mutator.questions())

    def choose(candidates: Any, what: str) -> Any:
        return candidates[answer(next(questions)) if len(candidates) > 1 else 0]

    return load_model(data(mutator.draw(Network(name), mutator.plan(choose), SIZE)))


@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_point_runs_and_is_reproduced(name: str) -> None:
    check(made(name, least))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**32))
def test_a_random_point_runs_and_is_reproduced(name: str, seed: int) -> None:
    check(made(name, at_random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_largest_point_runs_and_is_reproduced(name: str) -> None:
    check(made(name, greatest))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_more_random_points_run_and_are_reproduced(name: str, seed: int) -> None:
    check(made(name, at_random(seed)))


@pytest.mark.parametrize("name", [space.name for space in DRAWN])
def test_a_variant_is_the_network_drawn_for_its_answers(name: str) -> None:
    variant = made(name, at_random(5))
    assert variant.model.structure.digest == drawn(name, at_random(5)).structure.digest


@pytest.mark.parametrize("space", DRAWN, ids=lambda space: space.name)
def test_a_variant_is_asked_all_questions_of_its_mutator(space: Any) -> None:
    asked, way = [], at_random(3)

    def answer(question: Any) -> int:
        asked.append(question)
        return way(question)

    made(space.name, answer)
    assert tuple(asked) == space.mutators[0].questions()


MOBILENET = {
    f"stage{number}/{what}": value
    for number, (_, blocks, _) in enumerate(MOBILENET_V2, start=1)
    for what, value in {"width": 1.0, "blocks": blocks, "kernel": 3, "expansion": 6, "excites": "no"}.items()
}
PELEE = {
    f"stage{number}/{what}": getattr(gene, what)
    for number, gene in enumerate(pelee.PELEENET, start=1)
    for what in ("ways", "repetitions", "growth")
}


@pytest.mark.parametrize(("name", "chosen"), [("mnasnet", MOBILENET), ("pelee", PELEE)])
def test_the_base_is_a_point_that_changes_nothing(name: str, chosen: dict[str, Any]) -> None:
    variant = made(name, by_name(chosen))
    assert variant.record.primitives == ()
    assert variant.unmodified == frozenset(node.name for node in variant.model.proto.graph.node)


def test_parts_without_choices_equal_the_base() -> None:
    variant = made("pelee", by_name({**PELEE, "stage4/growth": 16}))
    changed = {node.name for node in variant.model.proto.graph.node} - variant.unmodified
    assert changed
    assert all(name.startswith("stage4/") or name in ("pool", "flatten", "output") for name in changed)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_sampled_network_is_a_point_of_mnasnet(seed: int) -> None:
    chosen: dict[str, Any] = {}
    for number, (stage, (channels, _, _)) in enumerate(zip(sampled_stages(seed), MOBILENET_V2, strict=True), start=1):
        chosen |= {f"stage{number}/{what}": getattr(stage, what) for what in ("blocks", "kernel", "expansion")}
        width = next(width for width in WIDTHS if rounded(channels * width) == stage.channels)
        chosen |= {f"stage{number}/width": width, f"stage{number}/excites": "yes" if stage.excites else "no"}
    variant = made("mnasnet", by_name(chosen))
    assert variant.model.structure.digest == load_model(data(sampled(seed, SIZE))).structure.digest


def test_sizes_follow_the_tables() -> None:
    assert {space.name: space.size for space in SPACES} == {
        "mnasnet": 72**5 * 48,
        "nasnet": (720 * 13**5) ** 4 * 2**10,
        "darts": (180 * 7**8) ** 2,
        "enas": (720 * 5**5) ** 4,
        "spos": 4**20,
        "inception": 360**3,
        "pelee": 60**4,
    }
    drawing = [mutator for space in SPACES for mutator in space.mutators if isinstance(mutator, Redraw)]
    assert [len(mutator.questions()) for mutator in drawing] == [30, 50, 22, 40, 20, 12]


def counted(plan: Callable[..., Any]) -> int:
    """The number of plans, which all differ."""
    plans = list(every(plan))
    assert len(set(plans)) == len(plans)
    return len(plans)


def test_counting_small_spaces_gives_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(inception.chosen_ways) == inception.WAYS_TO_CHOOSE == 3**2 + 3**3 + 3**4 + 3**5
    monkeypatch.setattr(pelee, "_BOTTLENECKS", (1,))
    assert counted(pelee.chosen_genes) == 2 * 10 * 3
    assert counted(partial(nasnet.chosen_block, number=1, name="block")) == 2 * 2 * 13 * 13 * 2
    assert counted(partial(enas.chosen_block, number=1, name="block")) == 2 * 2 * 5 * 5
    nodes = [partial(darts.chosen_node, number=number, name=str(number)) for number in (1, 2)]
    assert counted(lambda choose: tuple(node(choose) for node in nodes)) == 1 * 3 * 7**4
    monkeypatch.setattr(mnasnet, "MOBILENET_V2", (MOBILENET_V2[4], MOBILENET_V2[5]))
    assert counted(mnasnet.chosen_stages) == 72 * 48
