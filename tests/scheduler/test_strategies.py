"""A strategy of stages is a rule in one table, which the search, its proof, explanations and drawings use."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from by_definition import graph_of

from iosched.cli.pictures.schedule_svg import draw_svg
from iosched.cli.pictures.schedule_text import draw_text
from iosched.jobs.matrix import MatrixSettings
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.graph import ComputationGraph
from iosched.scheduler.alternatives import operator_placement
from iosched.scheduler.document import check_operators
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import (
    BASELINES,
    COMPARED,
    LANES,
    NAMES,
    SEARCHES,
    STAGE_RULES,
    SearchStrategy,
    StageRule,
    StrategyName,
    pruning_of,
)

FOLDERS = ("models", "scheduler", "runtime", "profiler", "jobs", "cli", "api")
LOWERED_IN = (
    "jobs/annotate.py",  # into nodes of an ONNX file
    "profiler/devices/analytic/analytic_cost.py",
    "runtime/cpu/backend.py",
    "runtime/cuda/lower/lowering.py",
)


class MadeUp(StrEnum):
    PAIRED = "paired"  # the first two operators of a block together


class FastInPairs:
    def stage_latency_us(self, stage: Stage) -> float:
        return 1.0 if stage.strategy == MadeUp.PAIRED else 10.0 * len(stage.operators)

    def lower_bound_us(self, stage: Stage) -> float:
        return 0.0


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> StageRule:
    def refusal(graph: ComputationGraph, names: list[str]) -> str | None:
        return None if set(names) == {"0", "1"} else f"{names[-1]!r} is in no pair"

    rule = StageRule(lambda graph, names: [names[:2]], refusal, True, "paired", "#123456", "operators in pairs")
    monkeypatch.setitem(STAGE_RULES, MadeUp.PAIRED, rule)
    monkeypatch.setitem(SEARCHES, "both", tuple(STAGE_RULES))
    return rule


GRAPH = graph_of(4, [(0, 2), (1, 2), (2, 3)])
PAIR = Stage(MadeUp.PAIRED, (("0",), ("1",)))


def test_every_name_is_a_search_or_a_baseline() -> None:
    assert (*SEARCHES, LANES, *BASELINES) == NAMES == get_args(StrategyName)
    assert tuple(SEARCHES) == get_args(SearchStrategy)
    assert sorted(COMPARED) == sorted(NAMES)
    assert set(STAGE_RULES) == set(Strategy)


def test_a_strategy_is_named_where_it_is_lowered_and_nowhere_else() -> None:
    top = Path(__file__).parents[2]
    sources = [path for folder in FOLDERS for path in (top / folder).rglob("*.py")]
    named = {path.relative_to(top).as_posix() for path in sources if "Strategy.MERGE" in path.read_text()}
    assert named == {"scheduler/strategies.py", *LOWERED_IN}


def test_dos_has_fixed_limits_and_the_others_use_the_given_ones() -> None:
    given = Pruning(2, 5)
    assert [pruning_of(name, given) for name in NAMES if name != "dos"] == [given] * 6
    assert pruning_of("dos", given) == Pruning(1, None)


@pytest.mark.parametrize("limits", [{"r": 2}, {"s": 4}, {"r": None, "s": None}])
def test_limits_that_contradict_a_strategy_are_refused(limits: dict[str, int | None]) -> None:
    for make in (OptimizeSettings, partial(MatrixSettings, ("v100",))):
        with pytest.raises(UsageError, match=r"'dos' always uses r=1, s=None"):
            make(strategy="dos", **limits)
        assert make(strategy="dos").pruning == make(strategy="dos", r=1, s=None).pruning == Pruning(1, None)
        assert make(strategy="both", **limits).r == limits.get("r", 3)


def test_a_new_strategy_is_searched_and_proven(paired: StageRule) -> None:
    found = search(GRAPH, FastInPairs())
    stages = list(found.schedule.stages)
    assert [(stage.strategy, stage.operators) for stage in stages[:1]] == [(MadeUp.PAIRED, ("0", "1"))]
    assert (found.schedule.predicted_us, found.proven) == (21.0, "blocks")
    assert MadeUp.PAIRED not in {
        stage.strategy for stage in search(GRAPH, FastInPairs(), strategy="merge").schedule.stages
    }


def test_a_new_strategy_is_compared_when_a_placement_is_explained(paired: StageRule) -> None:
    cost = FastInPairs()
    alone = Schedule((Block(0, tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in "0123")),))
    found = operator_placement(GRAPH, alone, "0", cost, cost.stage_latency_us)
    assert MadeUp.PAIRED in {stage.strategy for place in found.others for stage in place.stages}


def test_a_new_strategy_is_checked_and_drawn(paired: StageRule) -> None:
    rest = Stage(Strategy.CONCURRENT, (("2", "3"),))
    schedule = Schedule((Block(0, (PAIR, rest)),))
    check_operators(schedule, GRAPH)
    with pytest.raises(InvalidScheduleError, match="'3' is in no pair"):
        check_operators(Schedule((Block(0, (Stage(MadeUp.PAIRED, (("2",), ("3",))),)),)), GRAPH)
    assert " paired" in draw_text(schedule, title="net", styles={})
    picture = draw_svg(schedule, title="net", styles={})
    assert 'stroke="#123456"' in picture
    assert "dashed: operators in pairs" in picture
