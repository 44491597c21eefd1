"""Output of a running score command: its steps are reported in order, and other lines are ignored."""

from __future__ import annotations

import pytest

from iosched.jobs.exploring.score import StepReader


def read(*lines: str) -> tuple[list[tuple[int, float]], StepReader]:
    """The steps that are reported, and their reader."""
    reported: list[tuple[int, float]] = []
    watched = StepReader("loss", lambda step, value: reported.append((step, value)))
    for line in lines:
        watched.line(line)
    return reported, watched


def test_each_step_is_reported_once_and_in_order() -> None:
    reported, watched = read(
        *(f'{{"step": {step}, "loss": {loss}}}' for step, loss in ((0, 3), (2, 2.5), (2, 1), (1, 9), (3, 2)))
    )
    assert reported == [(0, 3.0), (2, 2.5), (3, 2.0)]
    assert watched.step == 3


@pytest.mark.parametrize(
    "line",
    [
        "epoch 1",
        "",
        "7",
        "[" * 100_000,
        '{"step": 1}',
        '{"loss": 1}',
        '{"step": 1.5, "loss": 1}',
        '{"step": 1, "loss": "1"}',
        '{"step": -1, "loss": 1}',
        '{"step": 9999999999, "loss": 1}',
        '{"step": 1, "loss": 1' + "0" * 400 + "}",
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    reported, watched = read(line, '{"step": 1, "loss": 2}')
    assert reported == [(1, 2.0)]
    assert watched.step == 1
