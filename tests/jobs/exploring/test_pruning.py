"""What a score command prints while it runs: its steps are told, in order, and all else is passed over."""

from __future__ import annotations

import pytest

from iosched.jobs.exploring.pruning import Watched


def told(*lines: str, worse_from: float = 100.0) -> tuple[list[tuple[int, float]], Watched]:
    """The steps that are asked about, and what watched them; values above `worse_from` are not worth going on."""
    asked: list[tuple[int, float]] = []

    def stops(step: int, value: float) -> bool:
        asked.append((step, value))
        return value > worse_from

    watched = Watched("loss", stops)
    for line in lines:
        watched.line(line)
    return asked, watched


def test_each_step_is_told_once_and_in_order() -> None:
    asked, watched = told(
        *(f'{{"step": {step}, "loss": {loss}}}' for step, loss in ((0, 3), (2, 2.5), (2, 1), (1, 9), (3, 2)))
    )
    assert asked == [(0, 3.0), (2, 2.5), (3, 2.0)]
    assert (watched.step, watched.is_worse) == (3, False)


def test_once_it_is_not_worth_going_on_nobody_is_asked_any_more() -> None:
    asked, watched = told('{"step": 1, "loss": 101}', '{"step": 2, "loss": 1}')
    assert asked == [(1, 101.0)]
    assert watched.is_worse
    assert watched.reason.startswith("pruned after step")


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
def test_what_is_no_step_is_passed_over(line: str) -> None:
    asked, watched = told(line, '{"step": 1, "loss": 2}')
    assert asked == [(1, 2.0)]
    assert watched.step == 1
