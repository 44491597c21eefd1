"""What is tried in a stage, and how much may be measured for it."""

from __future__ import annotations

import pytest
from scripted import fire

from iosched.jobs.headroom import ladders
from iosched.jobs.headroom.ladders import NOW, Ladders, ladders_of
from iosched.jobs.headroom.trying import Allowance
from iosched.models.enlarging.part import part_of
from iosched.scheduler.schedule import Stage, Strategy


def tried(*groups: tuple[str, ...], strategy: Strategy = Strategy.CONCURRENT, is_run: bool = True) -> Ladders:
    model, stage = fire(), Stage(strategy, groups)
    return ladders_of(model.graph, stage, part_of(model, groups), 8, is_run=is_run)


def test_the_groups_with_least_to_do_are_tried_first() -> None:
    found = tried(("f3",), ("f1",))
    assert [(each.kind, each.operator) for each in found.ladders] == [
        ("width", "f1"),
        ("kernel", "f1"),
        ("width", "f3"),
        ("kernel", "f3"),
        ("branch", "f1"),
    ]
    widths = next(each for each in found.ladders if each.kind == "width")
    assert (widths.now, tuple(widths.rungs.values())) == ((16,), ((24,), (32,)))
    assert set(found.parts) == {NOW, *(name for each in found.ladders for name in each.rungs)}


def test_a_merge_gets_no_branch() -> None:
    assert {each.kind for each in tried(("f1",), ("f3",), strategy=Strategy.MERGE).ladders} == {"width", "kernel"}


def test_of_a_group_the_last_operators_are_tried() -> None:
    assert [each.operator for each in tried(("fs", "f1")).ladders if each.kind == "width"] == ["f1", "fs"]


def test_it_is_said_what_reads_new_channels_outside_of_the_stage() -> None:
    def readers(*groups: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {each.operator: each.readers for each in tried(*groups).ladders if each.kind == "width"}

    assert readers(("fs",)) == {"fs": ("f1", "f3")}
    assert readers(("fs", "f1")) == {"f1": ("fc",), "fs": ("f3",)}
    assert readers(("f3", "fc")) == {"f3": ("gs",)}  # by way of the Concat
    assert all(each.readers == () for each in tried(("f1",), ("f3",)).ladders if each.kind != "width")


def test_large_weights_are_copied_only_where_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladders, "MOST_WEIGHTS_NBYTES", 2000)  # those of f1 are 1024 bytes, those of f3 9 times as many
    assert {each.operator for each in tried(("f1",), ("f3",)).ladders} == {"f1"}
    assert {each.operator for each in tried(("f1",), ("f3",), is_run=False).ladders} == {"f1", "f3"}


def test_there_is_nothing_to_try_where_nothing_has_weights() -> None:
    assert not tried(("fc",)).ladders


def test_an_allowance_gives_what_is_left() -> None:
    allowance = Allowance(5)
    assert (allowance.take(9, keep=2), allowance.left, allowance.spent) == (3, 2, 3)
    assert (allowance.take(1, keep=2), allowance.take(1), allowance.take(4), allowance.take(1)) == (0, 1, 1, 0)
    assert (allowance.left, allowance.spent) == (0, 5)
