"""How two schedules differ: by which operators run together, not by the numbers of stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from iosched.scheduler.difference import Change, difference
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy

SIDE_BY_SIDE, MERGE, SESSION = Strategy.CONCURRENT, Strategy.MERGE, Strategy.SESSION


def schedule(*texts: str) -> Schedule:
    """One block of stages such as "ab|c": two groups side by side; "+" in front merges, "=" runs it in a session."""
    return Schedule((Block(0, tuple(map(stage, texts))),))


def stage(text: str) -> Stage:
    strategy = {"+": MERGE, "=": SESSION}.get(text[0], SIDE_BY_SIDE)
    return Stage(strategy, tuple(tuple(group) for group in text.lstrip("+=").split("|")), 1.0)


def changes(before: Schedule, after: Schedule) -> dict[str, set[str]]:
    return {each.operator: {change.value for change in each.changes} for each in difference(before, after).operators}


def test_a_schedule_equals_itself_and_one_of_other_latencies_or_blocks() -> None:
    one = schedule("a", "b|cd", "+ef")
    stages = [Stage(each.strategy, each.groups, 7.0, 9.0) for each in one.stages]
    other = Schedule((Block(0, tuple(stages[:1])), Block(1, tuple(stages[1:]), optimal=True)))
    found = difference(one, other)
    assert found.equal
    assert found.count == 6
    assert all(pair.alike for pair in found.stages)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("a", "b"), ("a", "b", "c"), {"c": {"missing"}}),
        (("a", "b", "c"), ("b", "c"), {"a": {"missing"}}),
        (("a", "b"), ("x", "a", "b"), {"x": {"missing"}}),
        (("a|b", "c"), ("a|b|c",), {"c": {"stage"}}),
        (("a|b|c",), ("a|b", "c"), {"c": {"stage"}}),
        (("a", "b", "c"), ("c", "a", "b"), {"c": {"stage"}}),
        (("ab|c",), ("a|bc",), {"b": {"group"}}),
        (("ab|c",), ("abc",), {"c": {"group"}}),
        (("a|b",), ("b|a",), {}),
        (("ab",), ("ba",), {"a": {"order"}, "b": {"order"}}),
        (("a|b",), ("+a|b",), {"a": {"strategy"}, "b": {"strategy"}}),
        (("ab",), ("=ab",), {"a": {"strategy"}, "b": {"strategy"}}),
        (("+a|b", "c"), ("+a|b|c",), {"a": {"merged"}, "b": {"merged"}, "c": {"stage", "strategy"}}),
        (("+a|b",), ("+b|a",), {}),
    ],
)
def test_changes_are_classified(before: Sequence[str], after: Sequence[str], expected: dict[str, set[str]]) -> None:
    assert changes(schedule(*before), schedule(*after)) == expected


def test_changed_lanes_of_a_group_are_a_difference() -> None:
    groups = (("a",), ("b",))
    one = Schedule((Block(0, (Stage(SIDE_BY_SIDE, groups, division=Division(2, ((0,), (1,)))),)),))
    other = Schedule((Block(0, (Stage(SIDE_BY_SIDE, groups, division=Division(2, ((0,), (0, 1)))),)),))
    assert changes(one, other) == {"b": {"lanes"}}
    assert changes(schedule("a|b"), one) == {"a": {"lanes"}, "b": {"lanes"}}


def test_a_difference_has_the_place_of_an_operator_in_both() -> None:
    (found,) = difference(schedule("a", "b|cd", "e"), schedule("a", "b|c", "d", "e")).operators
    assert (found.operator, found.changes) == ("d", (Change.STAGE,))
    assert found.before is not None
    assert found.after is not None
    assert (found.before.stage, found.before.group, found.before.together) == (1, 1, ("c", "d"))
    assert (found.after.stage, found.after.group, found.after.together) == (2, 0, ("d",))


def test_stages_are_paired_in_the_order_of_both() -> None:
    pairs = difference(schedule("a", "b|c", "d", "e"), schedule("a", "x", "b|c|d", "e")).stages
    assert [(pair.before, pair.after, pair.alike) for pair in pairs] == [
        (0, 0, True),
        (None, 1, False),
        (1, 2, False),
        (2, None, False),
        (3, 3, True),
    ]


@pytest.mark.parametrize("seed", range(60))
def test_the_number_of_operators_in_another_stage_is_minimal(seed: int) -> None:
    """No other pairing of stages in the order of both schedules has fewer."""
    draw = random.Random(seed)
    before, after = _drawn(draw), _drawn(draw)
    moved = sum("stage" in each for each in changes(_of(before), _of(after)).values())
    names = {name for each in before for name in each}
    assert moved == len(names) - _most_in_common(before, after)


def _drawn(draw: random.Random) -> list[str]:
    names = list("abcdefgh")
    draw.shuffle(names)
    cuts = sorted(draw.sample(range(1, len(names)), draw.randint(0, 5)))
    return ["".join(names[start:end]) for start, end in zip([0, *cuts], [*cuts, len(names)], strict=True)]


def _of(stages: Sequence[str]) -> Schedule:
    return schedule(*("|".join(each) for each in stages))


def _most_in_common(before: Sequence[str], after: Sequence[str]) -> int:
    """By trying all ways."""
    return max(
        sum(len({*before[one]} & {*after[other]}) for one, other in zip(left, right, strict=True))
        for size in range(min(len(before), len(after)) + 1)
        for left in combinations(range(len(before)), size)
        for right in combinations(range(len(after)), size)
    )


def test_schedules_of_thousands_of_stages_are_compared() -> None:
    names = [f"operator {number}" for number in range(5000)]
    one, other = (
        Schedule((Block(0, tuple(Stage(SIDE_BY_SIDE, ((name,),)) for name in each)),)) for each in (names, names[::-1])
    )
    assert len(difference(one, one).stages) == 5000
    assert sum(Change.STAGE in each.changes for each in difference(one, other).operators) == 4999
