"""The operators of a schedule in sequence, with latencies from its file."""

from __future__ import annotations

from dataclasses import replace

from iosched.scheduler.document import Alternative, ScheduleDocument, one_by_one
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def stage(*names: str, us: float | None = None) -> Stage:
    return Stage(Strategy.CONCURRENT, tuple((name,) for name in names), us)


DOCUMENT = ScheduleDocument(
    model="net",
    sha256="0" * 64,
    inputs={},
    dtype="float32",
    device={"kind": "cpu", "name": "CPU"},
    schedule=Schedule(
        (Block(0, (stage("b", "a", us=9.0), stage("c", us=4.0)), optimal=True), Block(3, (stage("d", "e"),)))
    ),
)


def rows(document: ScheduleDocument) -> list[list[tuple[str, float | None]]]:
    found = one_by_one(document)
    assert all(len(each.operators) == 1 for each in found.stages)
    return [[(each.operators[0], each.latency_us) for each in block.stages] for block in found.blocks]


def test_stages_of_one_operator_give_its_latency() -> None:
    assert rows(DOCUMENT) == [[("b", None), ("a", None), ("c", 4.0)], [("d", None), ("e", None)]]
    assert [(block.index, block.optimal) for block in one_by_one(DOCUMENT).blocks] == [(0, False), (3, False)]


def test_the_sequential_schedule_in_the_file_gives_order_and_latencies() -> None:
    given = Schedule((Block(0, tuple(stage(name, us=float(n)) for n, name in enumerate("abcde"))),))
    document = replace(DOCUMENT, alternatives=(Alternative("sequential", given),))
    assert rows(document) == [[("a", 0.0), ("b", 1.0), ("c", 4.0)], [("d", 3.0), ("e", 4.0)]]


def test_a_part_of_a_schedule_has_only_its_own_operators() -> None:
    part = replace(DOCUMENT, schedule=Schedule(DOCUMENT.schedule.blocks[1:]))
    given = Schedule((Block(0, tuple(stage(name) for name in "edcba")),))
    assert rows(replace(part, alternatives=(Alternative("sequential", given),))) == [[("e", None), ("d", None)]]
