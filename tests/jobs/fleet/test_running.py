"""What the fleet does about everything that happens, by a clock of the test's own and without a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from fleet_threads import cpu_places, errand, row, toy_facts

from iosched.jobs.fleet import messages
from iosched.jobs.fleet.budget import Budget
from iosched.jobs.fleet.keeper import Action, Keeper
from iosched.jobs.fleet.messages import Asked, Done, Measured, Opened, Stop, encoded
from iosched.jobs.fleet.patience import Patience
from iosched.jobs.fleet.posts import LONGEST_WAIT_S
from iosched.jobs.fleet.running import Loaded, Running
from iosched.jobs.fleet.status import FleetStatus, Silence
from iosched.jobs.fleet.transport import Call, Command, Place, Places, Returned, Said, StartWorker, WorkerLost, WorkerUp
from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.questions import of_operator

WITHOUT_S = 10.0


@pytest.fixture
def running() -> Iterator[Running]:
    def ignored(_: object) -> None:
        pass

    keeper = Keeper(lambda: ProfileDatabase(None), lambda error, again: None)
    with closing(keeper), closing(Running(keeper, ignored, Silence(), Patience(), WITHOUT_S)) as running:
        yield running


@pytest.fixture
def submitted(running: Running) -> Callable[[], Future[Any]]:
    def submit() -> Future[Any]:
        future: Future[Any] = Future()
        running.submit(errand(device="v100"), future)
        return future

    return submit


def test_an_errand_fails_that_waited_so_long_for_a_worker(
    running: Running, submitted: Callable[[], Future[Any]]
) -> None:
    future = submitted()
    for now_s, is_done in ((100.0, False), (100.0 + WITHOUT_S - 1, False), (100.0 + WITHOUT_S, True)):
        running.look_round(now_s)
        assert future.done() == is_done
    with pytest.raises(DeviceError, match=r"no worker on v100 came up within 10 s"):
        future.result()


def test_one_that_comes_later_does_not_pay_for_how_long_another_waited(
    running: Running, submitted: Callable[[], Future[Any]]
) -> None:
    first = submitted()
    running.look_round(100.0)
    running.tell(first, Stop(how="now"))
    running.look_round(101.0)
    second = submitted()
    running.look_round(102.0 + WITHOUT_S)
    assert not second.done()


NOISE = "others had 60% of the cores"


class Scene:
    """A fleet on places of a test, whose commands it keeps; what happens, and when, is what the test says."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.sent: list[Command] = []
        self.notes: list[str] = []
        self._loaded: list[Loaded] = []
        self._database = ProfileDatabase(None)
        self.running = Running(self, self._loaded.append, self, Patience(), WITHOUT_S)  # type: ignore[arg-type]
        self.running.connected(self.sent.append)
        self.running.handle(Places(tuple(places)), 0.0)

    def do(self, action: Action) -> None:
        action(self._database)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def status(self, status: FleetStatus) -> None:
        pass

    def close(self) -> None:
        self.running.close()
        self._database.close()

    def wanted(self, now_s: float, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.running.submit(errand(**more), future)
        self.pass_time(now_s)
        return future

    def pass_time(self, now_s: float) -> None:
        self.running.look_round(now_s)
        self.running.step(now_s)

    def up(self, worker: str, now_s: float, **facts: Any) -> None:
        self.running.handle(WorkerUp(worker, encoded(toy_facts(**facts))), now_s)
        for loaded in self._loaded:
            self.running.handle(loaded, now_s)
        self._loaded.clear()
        self.pass_time(now_s)

    def says(self, worker: str, message: Any, now_s: float) -> None:
        call = [each for each in self.calls if each.worker == worker][-1].call
        self.running.handle(Said(worker, call, encoded(message)), now_s)
        self.pass_time(now_s)

    def returns(self, worker: str, now_s: float) -> None:
        call = [each for each in self.calls if each.worker == worker][-1].call
        self.running.handle(Returned(worker, call, encoded(Done(result=None))), now_s)
        self.pass_time(now_s)

    def lost(self, worker: str, now_s: float) -> None:
        self.running.handle(WorkerLost(worker, "killed"), now_s)
        self.pass_time(now_s)

    @property
    def calls(self) -> list[Call]:
        return [each for each in self.sent if isinstance(each, Call)]

    @property
    def left_s(self) -> list[float | None]:
        """What each call has said of the budget."""
        return [messages.decoded(each.message, messages.Call).left_s for each in self.calls]

    @property
    def started(self) -> list[str]:
        return [each.worker for each in self.sent if isinstance(each, StartWorker)]

    @property
    def workers(self) -> list[str]:
        return [each.name for each in self.running.status().workers]


@pytest.fixture
def scene() -> Iterator[Callable[[Sequence[Place]], Scene]]:
    made: list[Scene] = []

    def make(places: Sequence[Place]) -> Scene:
        made.append(Scene(places))
        return made[-1]

    yield make
    for each in made:
        each.close()


def disturbed(count: int) -> Measured:
    return Measured(rows=tuple(row(f"stage{index}", NOISE) for index in range(count)))


def test_rows_of_other_devices_are_sent_once_to_each_worker(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    for name in ("a", "b"):
        on.wanted(0.0, name=name, rows=(row("of a GPU", key="gpu"),))
    on.up("worker-1", 1.0)
    on.returns("worker-1", 2.0)
    on.lost("worker-1", 3.0)
    on.pass_time(4.0)
    on.up("worker-2", 4.0)
    told = [messages.decoded(each.message, messages.Call).rows for each in on.calls]
    assert [(each.worker, len(rows)) for each, rows in zip(on.calls, told, strict=True)] == [
        ("worker-1", 1), ("worker-1", 0), ("worker-2", 1),
    ]  # fmt: skip


def test_a_noisy_worker_is_used_where_no_quieter_machine_has_one(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.wanted(0.0)
    on.up("worker-1", 1.0, disturbed_by=(NOISE,))
    on.says("worker-1", disturbed(10), 2.0)
    assert on.workers == ["worker-1"]
    assert len(on.calls) == 1
    assert on.started == ["worker-1"]


def test_workers_on_one_machine_share_its_noise(scene: Callable[..., Scene]) -> None:
    (place,) = cpu_places(1)
    on = scene([Place(place.node, place.address, "cpu", count=2)])
    on.wanted(0.0)
    on.up("worker-1", 1.0)
    on.up("worker-2", 1.0, disturbed_by=(NOISE,))
    on.says("worker-1", disturbed(10), 2.0)
    assert on.workers == ["worker-1", "worker-2"]


def test_of_two_noisy_machines_none_is_given_up(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(2))
    on.wanted(0.0)
    for worker in ("worker-1", "worker-2"):
        on.up(worker, 1.0, disturbed_by=(NOISE,))
    on.says("worker-1", disturbed(10), 2.0)
    assert on.workers == ["worker-1", "worker-2"]


def test_a_noisy_machine_is_not_used_while_a_quieter_one_is_and_at_once_when_that_is_lost(
    scene: Callable[..., Scene],
) -> None:
    on = scene(cpu_places(2))
    on.wanted(0.0)
    on.up("worker-1", 1.0)
    on.up("worker-2", 1.0, disturbed_by=(NOISE,))
    assert on.workers == ["worker-1"]
    assert on.notes[-1] == f"cpu of 10.0.0.1 is not used: its machine is too noisy to measure on: {NOISE}"
    on.pass_time(1.0 + LONGEST_WAIT_S - 1)
    assert on.started == ["worker-1", "worker-2"]
    on.lost("worker-1", 1.0 + LONGEST_WAIT_S - 1)
    assert on.started == ["worker-1", "worker-2", "worker-3"]
    on.up("worker-3", 1.0 + LONGEST_WAIT_S, disturbed_by=(NOISE,))
    assert on.workers == ["worker-3"]


def test_a_machine_that_becomes_noisy_is_left_for_a_quieter_one(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(2))
    on.wanted(0.0)
    on.up("worker-1", 1.0)
    on.up("worker-2", 1.0)
    on.says("worker-1", disturbed(10), 2.0)
    assert on.workers == ["worker-2"]
    assert [each.worker for each in on.calls] == ["worker-1", "worker-2"], "it begins the work again"


def test_a_budget_counts_from_when_a_first_worker_has_the_model_open(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(3))
    on.wanted(0.0, budget=Budget(20.0))
    on.up("worker-1", 100.0)
    on.lost("worker-1", 130.0)
    on.up("worker-2", 140.0)
    on.says("worker-2", Opened(), 145.0)
    on.lost("worker-2", 157.0)
    on.up("worker-3", 158.0)
    assert on.left_s == [None, None, 7.0], "worker-3 gets what is left"


def test_questions_are_answered_within_the_budget_of_who_asks(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    on.wanted(0.0, budget=Budget(20.0))
    on.up("worker-1", 1.0)
    on.says("worker-1", Opened(), 2.0)
    on.says("worker-1", Asked(number=0, work={}, questions=(of_operator("a", "operator"),)), 17.0)
    assert on.left_s == [None, 5.0]


def test_a_worker_without_a_result_is_waited_for_as_long_as_was_promised(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    future = on.wanted(0.0, budget=Budget(20.0))
    on.up("worker-1", 1.0)
    on.says("worker-1", Opened(), 10.0)
    on.says("worker-1", Measured(rows=(row("stage"),)), 13.0)
    promised_s = 10.0 + 1.1 * 20.0 + 5.0 + 3.0  # the stage took three seconds
    on.pass_time(promised_s - 0.1)
    assert not future.done()
    on.pass_time(promised_s)
    with pytest.raises(ExecutionError, match=r"before a worker had a result\.\nWhat .* is kept: run"):
        future.result(0)


def test_work_that_no_worker_has_begun_within_the_budget_fails_at_its_end(scene: Callable[..., Scene]) -> None:
    on = scene(cpu_places(1))
    budget = Budget(20.0)
    first, second = on.wanted(0.0, name="a", budget=budget), on.wanted(0.0, name="b", budget=budget)
    on.up("worker-1", 1.0)
    on.says("worker-1", Opened(), 10.0)
    on.pass_time(30.0)
    assert not first.done()
    with pytest.raises(ExecutionError, match="budget of 20 s was over before there was a worker for it"):
        second.result(0)
