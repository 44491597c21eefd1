"""Tasks are assigned to workers, again if those are lost or late, and each is answered once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from iosched.jobs.pool.scheduling import Assignment, ScheduledWorker, Scheduler
from iosched.jobs.pool.task_queue import QueuedTask, packet_size
from iosched.jobs.pool.timeouts import Durations, Timeouts

PATIENCE = Timeouts(factor=4.0, floor_s=10.0, unknown_s=1000.0, losses=3, turn_s=60.0)


def worker(name: str, device: str = "cpu", node: str | None = None, side: str = "cpu") -> ScheduledWorker:
    return ScheduledWorker(name, (device,), node or name, side)


def scheduler(*workers: str | ScheduledWorker, timeouts: Timeouts = PATIENCE) -> Scheduler:
    made = Scheduler(timeouts)
    for each in workers:
        made.join(worker(each) if isinstance(each, str) else each)
    return made


def jobs(*names: int, device: str = "cpu") -> list[QueuedTask]:
    return [QueuedTask(name, device, "job") for name in names]


def stages(count: int) -> list[QueuedTask]:
    return [QueuedTask(name, "cpu", "stage", in_packets=True) for name in range(count)]


def questions(asker: Assignment, *names: int) -> list[QueuedTask]:
    return [QueuedTask(name, "cpu", "question", "model", in_packets=True, asker=asker.number) for name in names]


def searching(*workers: str | ScheduledWorker) -> tuple[Scheduler, Assignment]:
    """A scheduler of these workers, the first of which has task 0."""
    made = scheduler(*workers)
    made.submit(jobs(0))
    (search,) = made.assign(0.0)
    return made, search


def by_worker(assignments: Iterable[Assignment]) -> dict[str, tuple[int, ...]]:
    return {each.worker: tuple(task.name for task in each.tasks) for each in assignments}


def end(of: Scheduler, assignment: Assignment, now_s: float) -> None:
    """The worker answers all tasks of an assignment."""
    for task in assignment.tasks:
        of.answered(assignment.number, task.name, now_s)
    of.ended(assignment.number, now_s)


def names(tasks: Iterable[QueuedTask]) -> list[int]:
    return [task.name for task in tasks]


def test_packets_of_20_stages_shrink_from_three_to_one() -> None:
    pool = scheduler("a", "b", "c", "d")
    pool.submit(stages(20))
    sizes = []
    while assignments := list(pool.assign(0.0)):
        for each in assignments:
            sizes.append(len(each.tasks))
            end(pool, each, 1.0)
    assert sizes == [3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("remaining", "workers", "size"), [(20, 4, 3), (16, 4, 2), (8, 4, 1), (1, 4, 1), (99, 0, 3)])
def test_the_size_of_a_packet(remaining: int, workers: int, size: int) -> None:
    assert packet_size(remaining, workers) == size


def test_tasks_are_taken_one_at_a_time() -> None:
    pool = scheduler("a")
    pool.submit(jobs(1, 2))
    (first,) = pool.assign(0.0)
    assert names(first.tasks) == [1]
    assert list(pool.assign(0.0)) == []
    end(pool, first, 1.0)
    assert by_worker(pool.assign(1.0)) == {"a": (2,)}


def test_workers_get_only_tasks_of_their_device() -> None:
    pool = scheduler(worker("a", "v100"), worker("b", "h100"))
    pool.submit([*jobs(1, device="h100"), *jobs(2, device="v100")])
    assert by_worker(pool.assign(0.0)) == {"a": (2,), "b": (1,)}


def test_a_worker_keeps_to_the_model_that_it_has_open() -> None:
    pool, order = scheduler("a"), []
    pool.submit(QueuedTask(name, "cpu", "cell", group) for name, group in enumerate("xyxy"))
    while assignments := list(pool.assign(0.0)):
        order += names(assignments[0].tasks)
        end(pool, assignments[0], 1.0)
    assert order == [0, 2, 1, 3]


def test_tasks_of_a_lost_worker_are_assigned_first() -> None:
    pool = scheduler("a")
    pool.submit(jobs(1, 2))
    list(pool.assign(0.0))
    assert pool.leave("a", 5.0, is_blamed=True).failed == ()
    pool.join(worker("b"))
    assert by_worker(pool.assign(5.0)) == {"b": (1,)}


def test_a_task_fails_after_three_lost_workers() -> None:
    pool = scheduler()
    pool.submit(jobs(1))
    failed = []
    for name in "abc":
        pool.join(worker(name))
        assert by_worker(pool.assign(0.0)) == {name: (1,)}
        failed.append(names(pool.leave(name, 1.0, is_blamed=True).failed))
    assert failed == [[], [], [1]]
    assert pool.tasks == {}


def test_an_assignment_that_ends_without_an_answer_counts_as_lost() -> None:
    pool, _ = searching("a")
    losses = []
    for _ in range(3):
        (held,) = pool.assignments.values()
        losses.append(names(pool.ended(held.number, 1.0).failed))
        list(pool.assign(1.0))
    assert losses == [[], [], [0]]


def test_removing_a_worker_does_not_count_as_a_task_failure() -> None:
    pool = scheduler()
    pool.submit(jobs(1))
    for name in "abcde":
        pool.join(worker(name))
        assert by_worker(pool.assign(0.0)) == {name: (1,)}
        assert pool.leave(name, 1.0, is_blamed=False).failed == ()
    assert list(pool.tasks) == [1]


def test_only_the_running_task_of_a_packet_is_blamed_and_retried_alone() -> None:
    pool = scheduler("a")
    pool.submit(stages(6))
    (packet,) = pool.assign(0.0)
    assert names(packet.tasks) == [0, 1, 2]
    pool.answered(packet.number, 0, 1.0)
    pool.leave("a", 2.0, is_blamed=True)
    pool.join(worker("b"))
    (alone,) = pool.assign(2.0)
    assert names(alone.tasks) == [1]
    end(pool, alone, 3.0)
    assert by_worker(pool.assign(3.0)) == {"b": (2, 3)}


def test_the_first_answer_of_a_late_task_and_its_copy_counts() -> None:
    pool, slow = searching("slow")
    pool.join(worker("quick"))
    assert pool.late(999.0) == ()
    assert pool.late(1000.0) == (slow,)
    (copy,) = pool.assign(1000.0)
    assert by_worker([copy]) == {"quick": (0,)}
    answer = pool.answered(copy.number, 0, 1001.0)
    assert answer.is_first
    assert answer.superfluous == (slow,)
    assert not pool.answered(slow.number, 0, 1002.0).is_first
    assert pool.tasks == {}


@pytest.mark.parametrize(
    ("took_s", "late_s"), [((), 3600.0), ((2.0,), 60.0), ((20.0,), 80.0), ((20.0, 30.0, 500.0), 120.0)]
)
def test_a_task_is_late_after_four_times_the_median_within_fixed_limits(
    took_s: tuple[float, ...], late_s: float
) -> None:
    pool = scheduler(*(str(index) for index in range(len(took_s))), timeouts=Timeouts())
    pool.submit(jobs(*range(len(took_s))))
    for held, seconds in zip(list(pool.assign(0.0)), took_s, strict=True):
        end(pool, held, seconds)
        pool.leave(held.worker, seconds, is_blamed=False)
    pool.join(worker("last"))
    pool.submit(jobs(99))
    (held,) = pool.assign(1000.0)
    assert pool.late(1000.0 + late_s - 1) == ()
    assert pool.late(1000.0 + late_s) == (held,)
    assert pool.late(1e9) == (), "it is reported once"


def test_a_task_that_is_not_repeatable_is_never_copied() -> None:
    pool = scheduler("a", "b")
    pool.submit([QueuedTask(1, "cpu", "score", is_repeatable=False)])
    list(pool.assign(0.0))
    assert pool.late(1e9) == ()
    assert list(pool.assign(1e9)) == []


def test_a_copy_has_twice_the_time() -> None:
    pool, _ = searching("a", "b", "c")
    pool.late(1000.0)
    list(pool.assign(1000.0))
    assert pool.late(2999.0) == ()
    assert len(pool.late(3000.0)) == 1


def test_losing_a_late_worker_causes_no_second_copy_of_its_task() -> None:
    pool, _ = searching("slow")
    pool.late(1000.0)
    pool.join(worker("quick"))
    list(pool.assign(1000.0))
    pool.leave("slow", 1001.0, is_blamed=True)
    pool.join(worker("idle"))
    assert list(pool.assign(1001.0)) == []


def test_a_slow_but_steady_worker_is_late_only_once() -> None:
    pool = scheduler("quick", "slow")
    pool.submit(jobs(*range(9)))
    begun_s = {each.number: 0.0 for each in pool.assign(0.0)}
    takes_s, late, done_by_slow = {"quick": 20.0, "slow": 200.0}, 0, 0
    for now in range(1, 800):
        late += len(pool.late(now))
        for held in list(pool.assignments.values()):
            if now - begun_s[held.number] == takes_s[held.worker]:
                answer = pool.answered(held.number, held.tasks[0].name, now)
                pool.ended(held.number, now)
                done_by_slow += answer.is_first and held.worker == "slow"
                for superfluous in answer.superfluous:
                    pool.ended(superfluous.number, now)
        begun_s |= {each.number: float(now) for each in pool.assign(now)}
        if pool.waiting() < 2:
            pool.submit(jobs(1000 + now))
    assert late == 1
    assert done_by_slow >= 2


def test_a_slow_worker_is_late_if_another_is_idle() -> None:
    pool = scheduler("slow")
    pool.submit(jobs(1, 2, 3))
    for begun_s, seconds in ((0.0, 20.0), (100.0, 200.0)):
        (held,) = pool.assign(begun_s)
        end(pool, held, begun_s + seconds)
    (slow,) = pool.assign(1000.0)
    pool.join(worker("rests"))
    assert pool.late(1799.0) == ()
    assert pool.late(1800.0) == (slow,)


def test_a_worker_whose_search_waits_gets_only_packets_of_questions() -> None:
    pool, search = searching("a")
    pool.submit(jobs(9))
    pool.wait_for(search.number, questions(search, 1, 2), 1.0)
    (first,) = pool.assign(1.0)
    assert names(first.tasks) == [1]
    assert pool.answered(first.number, 1, 2.0).resumed == ()
    pool.ended(first.number, 2.0)
    (second,) = pool.assign(2.0)
    assert pool.answered(second.number, 2, 3.0).resumed == (search,)
    pool.ended(second.number, 3.0)
    assert list(pool.assign(3.0)) == [], "it continues its search"


def test_questions_are_assigned_before_new_tasks() -> None:
    pool, search = searching("a", "b", worker("gpu", "v100"))
    pool.submit(jobs(8, 9))
    pool.wait_for(search.number, questions(search, 1, 2, 3), 1.0)
    assert by_worker(pool.assign(1.0)) == {"a": (1,), "b": (2,)}


def test_questions_go_to_workers_with_the_open_model_then_to_waiting_ones() -> None:
    pool, search = searching("a", "b", "c")
    pool.wait_for(search.number, questions(search, 1, 2), 1.0)
    packets = list(pool.assign(1.0))
    assert [each.worker for each in packets] == ["a", "b"]
    for each in packets:
        end(pool, each, 2.0)
    pool.wait_for(search.number, questions(search, 3), 3.0)
    assert by_worker(pool.assign(3.0)) == {"b": (3,)}


def test_searches_that_all_ask_answer_each_other() -> None:
    pool = scheduler("a", "b")
    pool.submit(jobs(0, 100))
    searches = list(pool.assign(0.0))
    for each in searches:
        first = each.tasks[0].name
        pool.wait_for(each.number, questions(each, first + 1, first + 2, first + 3), 1.0)
    resumed = []
    while packets := list(pool.assign(1.0)):
        for packet in packets:
            for task in packet.tasks:
                resumed += pool.answered(packet.number, task.name, 2.0).resumed
            pool.ended(packet.number, 2.0)
    assert sorted(resumed, key=lambda each: each.number) == searches


def test_questions_of_a_lost_search_are_dropped() -> None:
    pool, search = searching("a", "b")
    pool.wait_for(search.number, questions(search, 1, 2, 3, 4), 1.0)
    (under_way,) = (each for each in pool.assign(1.0) if each.worker == "b")
    pool.leave("a", 2.0, is_blamed=True)
    assert not pool.answered(under_way.number, under_way.tasks[0].name, 3.0).is_first
    pool.ended(under_way.number, 3.0)
    assert by_worker(pool.assign(3.0)) == {"b": (0,)}


def test_a_search_continues_if_one_of_its_questions_fails() -> None:
    pool, search = searching("a")
    pool.wait_for(search.number, questions(search, 1), 1.0)
    for _ in range(3):
        (packet,) = pool.assign(1.0)
        loss = pool.ended(packet.number, 2.0)
    assert names(loss.failed) == [1]
    assert loss.resumed == (search,)


def test_the_time_that_a_search_waits_for_others_does_not_make_it_late() -> None:
    pool, search = searching("a")
    pool.wait_for(search.number, questions(search, 1), 900.0)
    (packet,) = pool.assign(900.0)
    end(pool, packet, 1800.0)
    assert pool.late(1899.0) == ()
    assert pool.late(1900.0) == (search,)


def test_the_cpu_and_the_gpus_of_a_machine_take_turns() -> None:
    gpus = (worker("gpu0", "v100", "node", "gpu"), worker("gpu1", "v100", "node", "gpu"))
    pool = scheduler(*gpus, worker("cpu", "cpu", "node"))
    pool.submit(jobs(*range(9), device="v100"))
    first, second = pool.assign(0.0)
    pool.submit(jobs(99))
    end(pool, first, 59.0)
    (third,) = pool.assign(59.0)
    assert third.worker == first.worker, "it is still the turn of the GPUs"
    end(pool, second, 60.0)
    assert list(pool.assign(60.0)) == [], "the turn of the CPU begins when the last of them has ended"
    end(pool, third, 70.0)
    assert by_worker(pool.assign(70.0)) == {"cpu": (99,)}


def test_withdrawn_tasks_are_not_assigned_and_their_holders_are_returned() -> None:
    pool = scheduler("a")
    pool.submit(jobs(1, 2))
    (held,) = pool.assign(0.0)
    assert pool.withdraw(2) == ()
    assert pool.withdraw(1) == (held,)
    assert not pool.answered(held.number, 1, 1.0).is_first
    pool.ended(held.number, 1.0)
    assert list(pool.assign(1.0)) == []


def test_the_median_is_of_the_latest() -> None:
    durations, task, timeouts = Durations(), QueuedTask(1, "cpu", "job"), Timeouts(factor=1.0, floor_s=0.0)
    assert durations.late_s(task, timeouts, 1.0) == timeouts.unknown_s
    for seconds in (1.0, 100.0, 3.0):
        durations.add(task, seconds, "a")
    assert durations.late_s(task, timeouts, 1.0) == 3.0
    for _ in range(200):
        durations.add(task, 7.0, "a")
    assert durations.late_s(task, timeouts, 1.0) == 7.0
    assert durations.late_s(QueuedTask(1, "v100", "job"), timeouts, 1.0) == timeouts.unknown_s
