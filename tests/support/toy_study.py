"""A study of nothing but questions: the number and the kinds of paths. As a script it continues one.

python toy_study.py STUDY.db SAMPLER TRIALS SECONDS_A_TRIAL
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from iosched.jobs.exploring.explore_result import Feedback
from iosched.jobs.exploring.objectives import Card, parse_constraints, parse_objectives
from iosched.jobs.exploring.samplers import kind_of
from iosched.jobs.exploring.study import OpenedStudy, StudyStrategy, begun_study
from iosched.models.mutation.edit import Question

PATHS = Question("paths{1,2,3}", (1, 2, 3))
KINDS = ("conv", "dconv", "pool")
COSTS = {"conv": 9.0, "dconv": 3.0, "pool": 1.0}


def card(objectives: str = "latency:cpu,max:accuracy", constraints: str = "", seed: int = 0) -> Card:
    wanted = (parse_objectives([objectives]), parse_constraints([constraints]))
    return Card("digest", "base", "toy", *wanted, seed)


def asked(strategy: StudyStrategy, graph: int) -> tuple[str, ...]:
    """The kinds of the paths that the strategy chooses."""
    paths = PATHS.candidates[strategy.ask_choice(graph, PATHS)]
    assert isinstance(paths, int)
    questions = [Question(f"path{number}{{{','.join(KINDS)}}}", KINDS) for number in range(paths)]
    return tuple(KINDS[strategy.ask_choice(graph, question)] for question in questions)


def evaluated(kinds: tuple[str, ...]) -> Feedback:
    """More paths are slower and better; which kind they are matters less for how good they are."""
    latency_us = sum(COSTS[kind] for kind in kinds)
    accuracy = 0.5 + 0.1 * len(set(kinds)) + 0.01 * latency_us
    values = {"latency:cpu": latency_us, "accuracy": accuracy}
    return Feedback(values, record="{}", key=" ".join(kinds), seconds=1.0)


def strategy_of(
    opened: OpenedStudy, sampler: str, trials: int, population: int = 4, seconds: float | None = None
) -> StudyStrategy:
    return StudyStrategy(opened, kind_of(sampler, population), trials, seconds)


def go_on(path: Path, sampler: str, trials: int, own: Card | None = None, seconds_a_trial: float = 0.0) -> OpenedStudy:
    """Continues the study in a file until it has `trials` trials."""
    opened = begun_study(path, own or card())
    strategy = strategy_of(opened, sampler, trials)
    with strategy.evaluating():
        while not strategy.has_ended:
            graph = strategy.ask_graph()
            if graph is None:
                time.sleep(0.01)
                continue
            kinds = asked(strategy, graph)
            time.sleep(seconds_a_trial)
            strategy.receive_feedback(graph, evaluated(kinds))
            print(graph, flush=True)  # noqa: T201 - what the process that started this one waits for
    return opened


def choices(opened: OpenedStudy) -> list[tuple[object, ...]]:
    """The choices of each trial that has ended."""
    assert all(each.state == "complete" for each in opened.history())
    return [tuple(each.choices.items()) for each in opened.history()]


if __name__ == "__main__":
    go_on(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), seconds_a_trial=float(sys.argv[4]))
