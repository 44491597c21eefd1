"""A search on a worker has others answer its questions, finds what it finds alone, and needs nobody's answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted import fire, latencies_by_stage
from worker_talk import Talk, count_openings, result

from iosched.jobs.fleet.messages import (
    Asked,
    Done,
    Guessed,
    InterruptedWorkError,
    Known,
    SaidMessage,
    Stop,
    ToldMessage,
    encoded,
    packet,
)
from iosched.jobs.fleet.work.ahead import Ahead
from iosched.jobs.fleet.work.cost import Cost
from iosched.jobs.fleet.worker import Worker
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model
from iosched.profiler.store.tables import Row
from iosched.scheduler.questions import Question

THREADS = 2


@pytest.fixture
def worker() -> Worker:
    return Worker("cpu", THREADS)


class Driver:
    """Answers rounds of questions by other workers, as the fleet does, or does not answer."""

    def __init__(self, sent_model: Model, workers: Sequence[Worker]) -> None:
        self.model = sent_model
        self.workers = workers
        self.rounds: list[Asked] = []

    def __call__(self, message: SaidMessage) -> ToldMessage | None:
        if not isinstance(message, Asked):
            return None
        self.rounds.append(message)
        rows: list[Row] = []
        for number, question in enumerate(message.questions):
            talk = Talk(self.workers[number % len(self.workers)])
            assert isinstance(talk("questions", packet(message, [question]), self.model), Done)
            rows += talk.rows
        return Known(number=message.number, rows=tuple(rows))


def test_a_search_asks_others_and_finds_what_it_finds_alone(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    latencies_by_stage(monkeypatch)
    settings = OptimizeSettings(device="cpu", threads=THREADS, profile_db=tmp_path / "p.db")
    local = model_cost(fire(), "stages", settings)
    driver = Driver(fire(), [Worker("cpu", THREADS), Worker("cpu", THREADS)])
    cost = Cost("stages", OptimizeSettings(), ahead=Ahead())
    found: ModelCost = result(Talk(worker, driver)("cost", cost, fire()), ModelCost)
    assert (found.latency_us, found.sum_us) == (local.latency_us, local.sum_us)
    assert driver.rounds
    assert all(len(each.questions) > 1 for each in driver.rounds)
    assert (found.measurements, found.cache_hits) == (local.measurements, local.cache_hits), "by whoever it was"


def test_a_search_that_waits_answers_packets_itself(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_by_stage(monkeypatch)
    opened = count_openings(monkeypatch)
    answered: list[int] = []

    def by_the_asker(message: SaidMessage) -> ToldMessage | None:
        if isinstance(message, Asked):  # as a second call while the first waits, and so from another thread
            threading.Thread(target=answer, args=(message,)).start()
        return None

    def answer(message: Asked) -> None:
        other = Talk(worker)
        answered.append(result(other("questions", packet(message, message.questions), fire()), int))
        talk.told.put(encoded(Known(number=message.number, rows=tuple(other.rows))))

    talk = Talk(worker, by_the_asker)
    cost = Cost("stages", OptimizeSettings(), ahead=Ahead())
    found: ModelCost = result(talk("cost", cost, fire()), ModelCost)
    assert sum(answered) > 1
    assert opened == ["fire"]
    alone = result(Talk(Worker("cpu", THREADS))("cost", Cost("stages", OptimizeSettings()), fire()), ModelCost)
    assert (found.sum_us, found.measurements) == (alone.sum_us, alone.measurements)


def test_a_search_whose_questions_nobody_answers_measures_them_itself(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    latencies_by_stage(monkeypatch)
    answers = {Asked: lambda message: Known(number=message.number, rows=())}
    talk = Talk(worker, lambda message: answers.get(type(message), lambda message: None)(message))
    cost = Cost("stages", OptimizeSettings(), ahead=Ahead())
    found: ModelCost = result(talk("cost", cost, fire()), ModelCost)
    assert found.measurements > 0


def test_a_search_that_waits_is_interrupted(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_by_stage(monkeypatch)
    talk = Talk(worker, lambda message: Stop(how="now") if isinstance(message, Asked) else None)
    with pytest.raises(InterruptedWorkError):
        result(talk("cost", Cost("stages", OptimizeSettings(), ahead=Ahead()), fire()), ModelCost)


class Idle:
    """Rounds are answered by the worker that asks; another has nothing but guesses, of which it answers every second.

    Packets come to the asking worker when it has made its guesses.
    """

    def __init__(self, asker: Worker) -> None:
        self.asker, self.other = asker, Worker("cpu", THREADS)
        self.talk = Talk(asker, self._hear)
        self.rounds: list[Asked] = []
        self.guesses: dict[int, list[Question]] = {}
        self.answered: list[Question] = []

    def _hear(self, message: SaidMessage) -> None:
        if isinstance(message, Asked):
            self.rounds.append(message)
            threading.Thread(target=self._answer, args=(message,)).start()
        elif isinstance(message, Guessed):
            assert message.number == self.rounds[-1].number
            self.guesses.setdefault(message.number, []).append(message.question)

    def _answer(self, asked: Asked) -> None:
        Talk(self.asker)("questions", packet(asked, asked.questions), fire())
        idle, guesses = Talk(self.other), self.guesses.get(asked.number, [])[::2]
        idle("questions", packet(asked, guesses), fire())
        self.answered += guesses
        self.talk.told.put(encoded(Known(number=asked.number, rows=tuple(idle.rows))))


@pytest.mark.parametrize("fill", [2, 5, 40])
def test_who_has_nothing_else_answers_guesses_and_what_is_found_stays(
    worker: Worker, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    latencies_by_stage(monkeypatch)
    alone = result(Talk(Worker("cpu", THREADS))("cost", Cost("stages", OptimizeSettings()), fire()), ModelCost)
    idle = Idle(worker)
    found: ModelCost = result(idle.talk("cost", Cost("stages", OptimizeSettings(), Ahead(fill)), fire()), ModelCost)
    assert (found.latency_us, found.sum_us) == (alone.latency_us, alone.sum_us)
    assert found.cache_hits == 0
    assert found.measurements >= alone.measurements, "what was measured roughly as a guess may be measured in full"
    assert idle.answered
    for asked in idle.rounds:
        guesses = idle.guesses.get(asked.number, [])
        assert len(guesses) <= -len(asked.questions) % fill
        assert not set(guesses) & set(asked.questions)
        before = [guess for number in range(asked.number) for guess in idle.guesses.get(number, [])]
        same = {(guess.stage, guess.kind): guess for guess in before}
        for question in asked.questions:
            assert question not in idle.answered[: len(before)] or question.kind == "again"
            guess = same.get((question.stage, question.kind), question)
            assert guess == question or guess.worse_than_us < question.worse_than_us, "it is known by what it was"
