"""A search on a worker lets others answer its questions, finds the same as alone, and depends on no answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import fire, latencies_by_stage
from worker_talk import Talk, count_openings

from iosched.jobs.pool.messages import (
    QUESTIONS,
    Asked,
    Done,
    DriverMessage,
    InterruptedTaskError,
    Known,
    StopAssignment,
    WorkerMessage,
)
from iosched.jobs.ranking.model_cost import ModelCost, model_cost
from iosched.jobs.ranking.rank_task import COST, Cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.scheduler.schedule import Stage

ON_CPU = OptimizeSettings(device="cpu")


@pytest.fixture(autouse=True)
def stages(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """The measured stages."""
    return latencies_by_stage(monkeypatch)


def cost_of(talk: Talk, *, asks: bool = True) -> ModelCost:
    found: ModelCost = talk(COST, Cost("stages", ON_CPU), fire(), asks=asks)
    return found


def work_of(asked: Asked) -> dict[str, object]:
    """A packet of all questions of a search in a round."""
    return {"opening": asked.opening, "questions": asked.questions}


@pytest.fixture
def alone(tmp_path: Path) -> ModelCost:
    return model_cost(fire(), "stages", OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db"))


def test_a_search_that_asks_others_finds_the_same_as_alone(alone: ModelCost, stages: list[Stage]) -> None:
    other, rounds = Talk(), list[Asked]()
    measured_by_other = list[int]()

    def answered(message: WorkerMessage) -> DriverMessage | None:
        if not isinstance(message, Asked):
            return None
        rounds.append(message)
        before, said = len(stages), len(other.rows)
        assert other(QUESTIONS, work_of(message), fire()) == len(message.questions)
        measured_by_other.append(len(stages) - before)
        return Known(call=message.call, rows=tuple(other.rows[said:]))

    talk = Talk(answer=answered)
    stages.clear()
    found = cost_of(talk)
    assert (found.latency_us, found.sum_us) == (alone.latency_us, alone.sum_us)
    assert (found.measurements, found.cache_hits) == (alone.measurements, alone.cache_hits), "others count too"
    assert rounds
    assert all(len(each.questions) > 1 for each in rounds)
    assert sum(measured_by_other) == len(stages), "the search measures none itself"


def test_a_search_that_waits_answers_packets_itself(monkeypatch: pytest.MonkeyPatch, alone: ModelCost) -> None:
    opened = count_openings(monkeypatch)
    asks: dict[int, int] = {}

    def by_the_asker(message: WorkerMessage) -> DriverMessage | None:
        if isinstance(message, Asked):
            asks[talk.begin(QUESTIONS, work_of(message), fire())] = message.call
        if isinstance(message, Done) and message.call in asks:
            return Known(call=asks[message.call], rows=())
        return None

    talk = Talk(answer=by_the_asker)
    opened.clear()
    found = cost_of(talk)
    assert asks
    assert opened == ["fire"], "the search and its packets share the open model"
    assert (found.sum_us, found.measurements) == (alone.sum_us, alone.measurements)


def test_a_search_that_may_not_ask_sends_no_questions(alone: ModelCost) -> None:
    talk = Talk()
    assert cost_of(talk, asks=False).sum_us == alone.sum_us
    assert talk.all(Asked) == []


def test_a_search_measures_unanswered_questions_itself(alone: ModelCost) -> None:
    talk = Talk(answer=lambda message: Known(call=message.call, rows=()) if isinstance(message, Asked) else None)
    found = cost_of(talk)
    assert (found.sum_us, found.measurements) == (alone.sum_us, alone.measurements)


def test_a_search_that_waits_is_interrupted() -> None:
    talk = Talk(
        answer=lambda message: StopAssignment(call=message.call, how="now") if isinstance(message, Asked) else None
    )
    with pytest.raises(InterruptedTaskError):
        cost_of(talk)


def test_a_search_waits_no_longer_than_its_budget() -> None:
    talk = Talk()
    settings = OptimizeSettings(device="cpu", budget_s=1.0)
    with pytest.raises(UsageError, match="no time was left to measure stages"):
        talk(COST, Cost("stages", settings), fire(), asks=True)
    assert len(talk.all(Asked)) == 1


def test_stopping_another_task_does_not_end_a_search(alone: ModelCost) -> None:
    def stops_another(message: WorkerMessage) -> DriverMessage | None:
        if not isinstance(message, Asked):
            return None
        talk.send(StopAssignment(call=message.call + 100, how="now"))
        return Known(call=message.call, rows=())

    talk = Talk(answer=stops_another)
    assert cost_of(talk).sum_us == alone.sum_us
