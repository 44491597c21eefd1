"""Whatever happens to workers, in any order: no task is lost, answered twice, or waited for forever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from iosched.jobs.pool.scheduling import Assignment, Decisions, ScheduledWorker, Scheduler
from iosched.jobs.pool.task_queue import LARGEST_PACKET, QueuedTask
from iosched.jobs.pool.timeouts import Timeouts

DEVICES = {"cpu": "cpu", "v100": "gpu"}
NODES = ("one", "two")
PATIENCE = Timeouts(factor=2.0, floor_s=5.0, unknown_s=20.0, losses=3, turn_s=10.0)


class Cluster(RuleBasedStateMachine):
    """Workers that join, take tasks, wait, answer, are lost, and still answer.

    Attributes:
        held: assignments of workers that are up; `gone`, those of lost workers, which may still be answered.
        done_under: names of tasks that were answered under an assignment, by its number.
        waits: names of tasks that the holder of an assignment waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = Scheduler(PATIENCE)
        self.now_s = 0.0
        self.workers: dict[str, ScheduledWorker] = {}
        self.held: dict[int, Assignment] = {}
        self.gone: list[Assignment] = []
        self.done_under: dict[int, set[int]] = {}
        self.waits: dict[int, set[int]] = {}
        self.answers: Counter[int] = Counter()
        self.submitted: dict[int, QueuedTask] = {}
        self.withdrawn: set[int] = set()
        self.losses: Counter[int] = Counter()
        self.largest: dict[tuple[str, str], int] = {}
        self.n_names = 0

    def _name(self) -> int:
        self.n_names += 1
        return self.n_names

    @rule(device=st.sampled_from(sorted(DEVICES)), node=st.sampled_from(NODES))
    def worker_comes(self, device: str, node: str) -> None:
        info = ScheduledWorker(f"worker-{self._name()}", (device,), node, DEVICES[device])
        self.workers[info.name] = info
        self.pool.join(info)

    @rule(device=st.sampled_from(sorted(DEVICES)), group=st.sampled_from("xy"), count=st.integers(1, 20))
    def stages_are_submitted(self, device: str, group: str, count: int) -> None:
        self._submit([QueuedTask(self._name(), device, "stage", group, in_packets=True) for _ in range(count)])

    @rule(device=st.sampled_from(sorted(DEVICES)), count=st.integers(1, 3), is_repeatable=st.booleans())
    def jobs_are_submitted(self, device: str, count: int, is_repeatable: bool) -> None:
        self._submit([QueuedTask(self._name(), device, "job", is_repeatable=is_repeatable) for _ in range(count)])

    def _submit(self, tasks: list[QueuedTask]) -> None:
        self._note(tasks)
        self.pool.submit(tasks)

    def _note(self, tasks: Iterable[QueuedTask]) -> None:
        for task in tasks:
            self.submitted[task.name] = task
            self.largest[task.device, task.group] = LARGEST_PACKET

    @rule(seconds=st.floats(0.0, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.pool.late(self.now_s)

    @rule()
    def tasks_are_assigned(self) -> None:
        for assignment in self.pool.assign(self.now_s):
            self._check(assignment)
            self.held[assignment.number] = assignment
            self.done_under[assignment.number] = set()

    def _check(self, assignment: Assignment) -> None:
        tasks = assignment.tasks
        beside = [each for each in self.held.values() if each.worker == assignment.worker]
        assert len(beside) <= 1
        assert all(self.waits[each.number] for each in beside), "it was waiting for its questions"
        assert all(task.asker is not None for task in tasks) or not beside
        assert {task.device for task in tasks} <= set(self.workers[assignment.worker].devices)
        assert len({task.group for task in tasks}) == 1
        assert len(tasks) == 1 or all(task.in_packets for task in tasks)
        assert not any(self.answers[task.name] for task in tasks)
        for task in tasks:
            holders = [each for each in self.held.values() if task in each.tasks]
            assert task.is_repeatable or not holders
        key = tasks[0].device, tasks[0].group
        if tasks[0].in_packets and not any(self.losses.values()):
            assert 1 <= len(tasks) <= self.largest[key]
            self.largest[key] = len(tasks)

    @precondition(lambda self: self._jobs_at_work())
    @rule(data=st.data(), count=st.integers(1, 9))
    def a_search_asks(self, data: st.DataObject, count: int) -> None:
        search = data.draw(st.sampled_from(self._jobs_at_work()))
        device = search.tasks[0].device
        tasks = [QueuedTask(self._name(), device, "question", "m", True, search.number) for _ in range(count)]
        if not self._is_done(search.tasks[0].name):
            self._note(tasks)
            self.waits[search.number] = {task.name for task in tasks}
        self.pool.wait_for(search.number, tasks, self.now_s)

    def _jobs_at_work(self) -> list[Assignment]:
        found = [each for each in self.held.values() if each.tasks[0].kind == "job"]
        return [each for each in found if not self.waits.setdefault(each.number, set())]

    @precondition(lambda self: self._answerable())
    @rule(data=st.data())
    def a_task_is_answered(self, data: st.DataObject) -> None:
        assignment, task = data.draw(st.sampled_from(self._answerable()))
        self._answer(assignment, task)

    def _answerable(self) -> list[tuple[Assignment, QueuedTask]]:
        return [
            (each, task)
            for each in [*self.held.values(), *self.gone]
            for task in each.tasks
            if task.name not in self.done_under[each.number] and not self.waits.get(each.number)
        ]

    def _answer(self, assignment: Assignment, task: QueuedTask) -> None:
        self.done_under[assignment.number].add(task.name)
        answer = self.pool.answered(assignment.number, task.name, self.now_s)
        assert answer.is_first != self._is_done(task.name)
        self._resume(task, answer.resumed)
        self.answers[task.name] += answer.is_first
        self._forget_waits()

    def _resume(self, task: QueuedTask, resumed: Sequence[Assignment]) -> None:
        waits = self.waits.get(task.asker or 0, set())
        was_last = waits == {task.name} and not self._is_done(task.name)
        assert bool(resumed) == (was_last and task.asker in self.held)
        waits.discard(task.name)

    def _is_done(self, name: int) -> bool:
        return self.answers[name] > 0 or name in self.withdrawn

    def _forget_waits(self) -> None:
        """No search waits for questions once it is lost or answered by another worker."""
        for each in [*self.held.values(), *self.gone]:
            if all(self._is_done(task.name) for task in each.tasks) or each.number not in self.held:
                forgotten = self.waits.pop(each.number, set())
                self.withdrawn |= {name for name in forgotten if not self.answers[name]}

    @precondition(lambda self: self._finished())
    @rule(data=st.data())
    def an_assignment_ends(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self._finished())))

    def _finished(self) -> list[Assignment]:
        return [each for each in self.held.values() if len(self.done_under[each.number]) == len(each.tasks)]

    def _end(self, assignment: Assignment) -> None:
        del self.held[assignment.number]
        assert self.pool.ended(assignment.number, self.now_s) == Decisions()
        self._forget_waits()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), is_blamed=st.booleans())
    def a_worker_goes(self, data: st.DataObject, is_blamed: bool) -> None:
        self._go(data.draw(st.sampled_from(sorted(self.workers))), is_blamed)

    def _go(self, name: str, is_blamed: bool) -> None:
        del self.workers[name]
        for each in [each for each in self.held.values() if each.worker == name]:
            del self.held[each.number]
            self.gone.append(each)
            self.losses.update(task.name for task in each.tasks if is_blamed)
        for task in self.pool.leave(name, self.now_s, is_blamed=is_blamed).failed:
            assert self.losses[task.name] >= PATIENCE.losses
            assert not self._is_done(task.name)
            assert not any(task in each.tasks for each in self.held.values()), "another may still answer it"
            self.answers[task.name] += 1
            self.waits.get(task.asker or 0, set()).discard(task.name)
        self._forget_waits()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def a_task_is_withdrawn(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.submitted)))
        if self.submitted[name].asker is None:
            self.pool.withdraw(name)
            self.withdrawn |= set() if self.answers[name] else {name}
            self._forget_waits()

    @invariant()
    def tasks_without_an_answer_are_known(self) -> None:
        open_works = {name for name in self.submitted if not self._is_done(name)}
        assert set(self.pool.tasks) == open_works

    @invariant()
    def a_machines_cpu_and_its_gpus_do_not_work_at_a_time(self) -> None:
        for node in NODES:
            at_work = {self.workers[each.worker] for each in self.held.values()}
            assert len({info.side for info in at_work if info.node == node}) <= 1

    def teardown(self) -> None:
        """With one good worker for each device, all tasks are finally answered, whatever hangs elsewhere."""
        for name in sorted(self.workers):
            self._go(name, is_blamed=False)
        for device, side in DEVICES.items():
            info = ScheduledWorker(f"good-{device}", (device,), "good", side)
            self.workers[info.name] = info
            self.pool.join(info)
        for _ in range(2 * len(self.submitted) + 2):
            self.tasks_are_assigned()
            for each in list(self.held.values()):
                for task in each.tasks:
                    self._answer(each, task)
                self._end(each)
        assert {name for name in self.submitted if not self._is_done(name)} == set()
        assert set(self.answers.values()) <= {0, 1}


TestCluster = Cluster.TestCase
TestCluster.settings = settings(stateful_step_count=40)


@given(
    rounds=st.lists(st.lists(st.integers(1, 12), max_size=4), min_size=1, max_size=6),
    more=st.integers(0, 3),
    data=st.data(),
)
def test_searches_on_all_workers_that_ask_each_other_end(
    rounds: list[list[int]], more: int, data: st.DataObject
) -> None:
    """`rounds` has the number of questions in each round of each search. Workers answer in any order."""
    pool = Scheduler(PATIENCE)
    n_workers, names = len(rounds), iter(range(1, 10**6))
    for index in range(n_workers):
        pool.join(ScheduledWorker(f"worker-{index}", ("cpu",), f"node-{index}"))
    searches = [QueuedTask(next(names), "cpu", "search", f"model {index}") for index in range(n_workers + more)]
    left = {task.name: list(rounds[index % n_workers]) for index, task in enumerate(searches)}
    pool.submit(searches)
    held: dict[int, Assignment] = {}
    waits: set[int] = set()
    n_answered = 0
    while True:
        held.update((each.number, each) for each in pool.assign(0.0))
        able = sorted(held.keys() - waits)
        if not able:
            break
        each = held[data.draw(st.sampled_from(able))]
        task = each.tasks[0]
        if task.asker is None and left[task.name]:
            count = left[task.name].pop()
            asked = [QueuedTask(next(names), "cpu", "q", task.group, True, each.number) for _ in range(count)]
            waits.add(each.number)
            pool.wait_for(each.number, asked, 0.0)
            continue
        for task in each.tasks:
            answer = pool.answered(each.number, task.name, 0.0)
            n_answered += task.asker is None and answer.is_first
            waits -= {each.number for each in answer.resumed}
        pool.ended(each.number, 0.0)
        del held[each.number]
    assert n_answered == len(searches)
    assert pool.tasks == {}
