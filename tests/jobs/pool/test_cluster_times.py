"""Timeouts of a pool, the workers that it uses meanwhile, and budgets, on a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from thread_cluster import cpu_places, row, toy_facts, toy_task

from iosched.jobs.pool import cluster, messages
from iosched.jobs.pool.cluster import ClusterPool, PoolStatus
from iosched.jobs.pool.messages import Asked, Call, Done, Measured, Opened, Progress, encoded
from iosched.jobs.pool.task import JobBudget, Pending
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import Command, Event, Lost, Place, Places, Said, Send, Start
from iosched.jobs.pool.worker_slots import LONGEST_WAIT_S
from iosched.models.errors import DeviceError, ExecutionError
from iosched.scheduler.cost import operator_question

WITHOUT_S = 10.0
NOISE = "other processes used 60% of the cores"


class Scene:
    """A pool, its transport and its observer; each test sets the time of each event."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.now_s = 0.0
        self.sent: list[Command] = []
        self.notes: list[str] = []
        self._coming: list[Event] = [Places(tuple(places))]
        self.pool = ClusterPool(lambda: self, None, self, Timeouts(without_s=WITHOUT_S))

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def receive(self, timeout_s: float) -> Sequence[Event]:
        found, self._coming = self._coming, []
        return found

    def close(self) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    def status(self, status: PoolStatus) -> None:
        pass

    def at(self, now_s: float, *events: Event) -> None:
        """Delivers these events at this time."""
        self.now_s = now_s
        self._coming += events
        self.pool.wait((), 0.0)

    def wanted(self, **more: Any) -> Pending[Any]:
        pending = self.pool.submit(toy_task(**more))
        self.at(self.now_s)
        return pending

    def up(self, worker: str, now_s: float, **facts: Any) -> None:
        self.says(worker, toy_facts(**facts), now_s)

    def says(self, worker: str, message: Any, now_s: float) -> None:
        self.at(now_s, Said(worker, encoded(message)))

    def ends(self, worker: str, now_s: float) -> None:
        self.says(worker, Done(call=self.number(worker), result=None), now_s)

    def lost(self, worker: str, now_s: float) -> None:
        self.at(now_s, Lost(worker, "killed", has_ended=True))

    def number(self, worker: str) -> int:
        """The number of the last call of a worker."""
        return [call.call for name, call in self.calls if name == worker][-1]

    @property
    def calls(self) -> list[tuple[str, Call]]:
        decoded = [(each.worker, messages.driver_message(each.message)) for each in self.sent if isinstance(each, Send)]
        return [(worker, message) for worker, message in decoded if isinstance(message, Call)]

    @property
    def left_s(self) -> list[float | None]:
        """The remaining budget that each call was sent."""
        return [call.left_s for _, call in self.calls]

    @property
    def started(self) -> list[str]:
        return [each.worker for each in self.sent if isinstance(each, Start)]

    @property
    def workers(self) -> list[str]:
        return list(self.pool._slots.active)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sequence[Place]], Scene]]:
    made: list[Scene] = []
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: made[-1].now_s, sleep=pytest.fail))

    def make(places: Sequence[Place]) -> Scene:
        made.append(Scene(places))
        made[-1].pool.__enter__()
        return made[-1]

    yield make
    for each in made:
        each.pool.close()


def disturbed(count: int) -> Measured:
    return Measured(rows=tuple(row(f"stage{index}", NOISE) for index in range(count)))


def test_a_task_fails_after_the_timeout_for_a_worker(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.at(100.0)
    pending = on.wanted(device="v100")
    for now_s, is_done in ((100.0 + WITHOUT_S - 1, False), (100.0 + WITHOUT_S, True)):
        on.at(now_s)
        assert pending.is_done == is_done
    with pytest.raises(DeviceError, match=r"no worker on v100 came up within 10 s"):
        pending.result()


def test_a_later_task_has_its_own_timeout_for_a_worker(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.at(100.0)
    on.pool.stop(on.wanted(device="v100"), "now")
    on.at(101.0)
    second = on.wanted(device="v100")
    on.at(100.0 + WITHOUT_S)
    assert not second.is_done


def test_rows_of_other_devices_are_sent_once_to_each_worker(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    for name in ("a", "b"):
        on.wanted(name=name, rows=(row("of a GPU", key="gpu"),))
    on.up("worker-1", 1.0)
    on.ends("worker-1", 2.0)
    on.lost("worker-1", 3.0)
    on.at(4.0)
    on.up("worker-2", 4.0)
    assert [(worker, len(call.rows)) for worker, call in on.calls] == [
        ("worker-1", 1), ("worker-1", 0), ("worker-2", 1),
    ]  # fmt: skip


def test_the_delay_before_a_lost_worker_is_restarted_doubles_each_time(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.wanted()
    waits_s, now_s = [], 0.0
    for number in range(1, 5):
        on.lost(f"worker-{number}", now_s)
        lost_s = now_s
        while len(on.started) == number:
            on.at(now_s := now_s + 0.25)
        waits_s.append(now_s - lost_s)
    assert waits_s == [0.25, 0.5, 1.0, 2.0]


def test_a_noisy_worker_is_used_if_there_is_no_quieter_machine(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.wanted()
    on.up("worker-1", 1.0, disturbed_by=(NOISE,))
    on.says("worker-1", disturbed(10), 2.0)
    assert (on.workers, len(on.calls), on.started) == (["worker-1"], 1, ["worker-1"])


def test_workers_on_one_machine_share_its_noise(scene: Callable[..., Scene]) -> None:
    (place,) = cpu_places(1)
    on = scene([Place(place.node, place.address, "cpu", count=2)])
    on.wanted()
    on.up("worker-1", 1.0)
    on.up("worker-2", 1.0, disturbed_by=(NOISE,))
    on.says("worker-1", disturbed(10), 2.0)
    assert on.workers == ["worker-1", "worker-2"]


def test_two_noisy_machines_are_both_used(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(2))
    on.wanted()
    for worker in ("worker-1", "worker-2"):
        on.up(worker, 1.0, disturbed_by=(NOISE,))
    on.says("worker-1", disturbed(10), 2.0)
    assert on.workers == ["worker-1", "worker-2"]


def test_a_noisy_machine_is_used_only_once_the_quieter_one_is_lost(
    scene: Callable[..., Scene],
) -> None:
    on = scene(cpu_places(2))
    on.wanted()
    on.up("worker-1", 1.0)
    on.up("worker-2", 1.0, disturbed_by=(NOISE,))
    assert on.workers == ["worker-1"]
    assert on.notes[-1] == f"cpu of 10.0.0.1 is not used: its machine is too noisy to measure on: {NOISE}"
    on.at(1.0 + LONGEST_WAIT_S - 1)
    assert on.started == ["worker-1", "worker-2"]
    on.lost("worker-1", 1.0 + LONGEST_WAIT_S - 0.5)
    assert on.started == ["worker-1", "worker-2", "worker-3"]
    on.up("worker-3", 1.0 + LONGEST_WAIT_S, disturbed_by=(NOISE,))
    assert on.workers == ["worker-3"]


@pytest.mark.parametrize(("count", "is_left"), [(7, False), (8, True)])
def test_a_machine_that_becomes_noisy_is_left_for_a_quieter_one(
    scene: Callable[..., Scene], count: int, is_left: bool
) -> None:
    on = scene(cpu_places(2))
    on.wanted()
    on.up("worker-1", 1.0)
    on.up("worker-2", 1.0)
    on.says("worker-1", disturbed(count), 2.0)
    on.at(3.0)
    assert on.workers == ["worker-1", "worker-2"][is_left:]
    assert [worker for worker, _ in on.calls] == ["worker-1", "worker-2"][: 1 + is_left], "it restarts the task"


def test_a_budget_starts_once_the_first_worker_has_opened_the_model(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(3))
    on.wanted(budget=JobBudget(20.0))
    on.up("worker-1", 100.0)
    on.lost("worker-1", 130.0)
    on.up("worker-2", 140.0)
    on.says("worker-2", Opened(call=on.number("worker-2")), 145.0)
    on.lost("worker-2", 157.0)
    on.up("worker-3", 158.0)
    assert on.left_s == [None, None, 7.0], "worker-3 gets the rest"


def test_questions_are_answered_within_the_budget_of_the_asking_search(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.wanted(budget=JobBudget(20.0))
    on.up("worker-1", 1.0)
    number = on.number("worker-1")
    on.says("worker-1", Opened(call=number), 2.0)
    on.says("worker-1", Asked(call=number, opening={}, questions=(operator_question("a", "operator"),)), 17.0)
    assert on.left_s == [None, 5.0]


def test_a_worker_without_a_result_is_waited_for_until_the_deadline(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    pending = on.wanted(budget=JobBudget(20.0))
    on.up("worker-1", 1.0)
    on.says("worker-1", Opened(call=on.number("worker-1")), 10.0)
    on.says("worker-1", Measured(rows=(row("stage"),)), 13.0)
    promised_s = 10.0 + 1.1 * 20.0 + 5.0 + 3.0  # the stage took three seconds
    on.at(promised_s - 0.1)
    assert not pending.is_done
    on.at(promised_s)
    with pytest.raises(ExecutionError, match=r"before a worker had a result\.\nWhat .* is kept: run"):
        pending.result()
    assert messages.driver_message(on.sent[-1].message).how == "now"  # type: ignore[union-attr]


def test_a_task_that_did_not_start_within_the_budget_fails_at_its_end(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    budget = JobBudget(20.0)
    first, second = (on.wanted(name=name, budget=budget) for name in "ab")
    on.up("worker-1", 1.0)
    on.says("worker-1", Opened(call=on.number("worker-1")), 10.0)
    on.at(30.0)
    assert not first.is_done
    with pytest.raises(ExecutionError, match="budget of 20 s was over before there was a worker for it"):
        second.result()


def test_an_interruption_while_messages_are_read_loses_none_of_them(scene: Callable[..., Scene]) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    on = scene(cpu_places(1))
    pending = on.wanted(on_said=interrupted)
    on.up("worker-1", 1.0)
    number = on.number("worker-1")
    said = (Progress(call=number, done=1, total=2, text=""), Done(call=number, result="found"))
    with pytest.raises(KeyboardInterrupt):
        on.at(2.0, *(Said("worker-1", encoded(each)) for each in said))
    on.at(3.0)
    assert pending.result() == "found"


def test_no_questions_of_a_lost_search_remain(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    pending = on.wanted()
    for worker, now_s in (("worker-1", 1.0), ("worker-2", 5.0)):
        on.up(worker, now_s)
        asked = tuple(operator_question(name, "operator") for name in "abcdefgh")
        on.says(worker, Asked(call=on.number(worker), opening={}, questions=asked), now_s)
        on.lost(worker, now_s + 1.0)
        on.at(now_s + 2.0)
    on.up("worker-3", 9.0)
    on.ends("worker-3", 10.0)
    assert pending.is_done
    assert on.pool._tasks.scheduler.tasks == {}
