"""Ways to answer the questions of a space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from iosched.models.graph import Scalar
from iosched.models.mutation.edit import Answer, Question


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


def every(plan: Callable[..., Any]) -> Iterator[Any]:
    """What `plan(choose)` makes of all answers, each once, however they depend on each other."""
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
