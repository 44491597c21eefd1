"""Work is leased to workers, given out again where those are lost or late, and answered once."""

from __future__ import annotations

import pytest

from iosched.jobs.fleet.backlog import Work, packet_size
from iosched.jobs.fleet.crew import WorkerFacts
from iosched.jobs.fleet.leases import Dispatcher, Lease
from iosched.jobs.fleet.patience import Durations, Patience

PATIENCE = Patience(factor=4.0, floor_s=10.0, unknown_s=1000.0, losses=3, turn_s=60.0)


def worker(name: str, device: str = "cpu", node: str | None = None, side: str = "cpu") -> WorkerFacts:
    return WorkerFacts(name, (device,), node or name, side)


def jobs(*names: str, device: str = "cpu") -> list[Work]:
    return [Work(name, device, "job") for name in names]


def individuals(count: int, device: str = "cpu") -> list[Work]:
    return [Work(f"individual-{index}", device, "individual", in_packets=True) for index in range(count)]


def questions(lease: Lease, *names: str, device: str = "cpu", group: str = "model") -> list[Work]:
    return [Work(name, device, "question", group, in_packets=True, asker=lease.name) for name in names]


def dispatcher(*workers: WorkerFacts) -> Dispatcher:
    made = Dispatcher(PATIENCE)
    for each in workers:
        made.worker_up(each)
    return made


def by_worker(leases: tuple[Lease, ...]) -> dict[str, tuple[str, ...]]:
    return {lease.worker: tuple(work.name for work in lease.works) for lease in leases}


def test_packets_of_the_papers_generation_fall_from_three_to_one() -> None:
    fleet = dispatcher(*(worker(f"w{index}") for index in range(4)))
    fleet.submit(individuals(20))
    sizes = []
    while leases := fleet.assignments(0.0):
        for lease in leases:
            sizes.append(len(lease.works))
            for work in lease.works:
                fleet.answered(lease.name, work.name, 1.0)
            fleet.returned(lease.name, 1.0)
    assert sizes == [3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("remaining", "workers", "size"), [(20, 4, 3), (16, 4, 2), (8, 4, 1), (1, 4, 1), (99, 0, 3)])
def test_the_size_of_a_packet(remaining: int, workers: int, size: int) -> None:
    assert packet_size(remaining, workers) == size


def test_whole_jobs_are_taken_one_at_a_time() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("one", "two"))
    (lease,) = fleet.assignments(0.0)
    assert by_worker((lease,)) == {"a": ("one",)}
    assert fleet.assignments(0.0) == ()
    assert fleet.answered(lease.name, "one", 1.0).is_first
    fleet.returned(lease.name, 1.0)
    assert by_worker(fleet.assignments(1.0)) == {"a": ("two",)}


def test_what_a_lost_worker_had_is_given_to_others_at_once_and_before_all_else() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("one", "two"))
    (lease,) = fleet.assignments(0.0)
    assert [work.name for work in fleet.worker_lost("a", 5.0).again] == ["one"]
    fleet.worker_up(worker("b"))
    assert by_worker(fleet.assignments(5.0)) == {"b": ("one",)}
    assert fleet.answered(lease.name, "one", 6.0).is_first, "what the lost one had sent counts when it comes first"


def test_a_late_work_is_given_out_again_and_its_first_answer_counts() -> None:
    fleet = dispatcher(worker("slow"))
    fleet.submit(jobs("one"))
    (slow,) = fleet.assignments(0.0)
    fleet.worker_up(worker("quick"))
    assert fleet.tick(999.0) == ()
    assert fleet.tick(1000.0) == (slow,)
    (again,) = fleet.assignments(1000.0)
    assert by_worker((again,)) == {"quick": ("one",)}
    answer = fleet.answered(again.name, "one", 1001.0)
    assert answer.is_first
    assert answer.superfluous == (slow,)
    assert not fleet.answered(slow.name, "one", 1002.0).is_first
    assert fleet.unanswered() == ()


def test_a_work_is_late_after_four_times_what_its_kind_takes() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("one", "two"))
    (first,) = fleet.assignments(0.0)
    fleet.answered(first.name, "one", 20.0)
    fleet.returned(first.name, 20.0)
    (second,) = fleet.assignments(100.0)
    assert fleet.tick(179.0) == ()
    assert fleet.tick(180.0) == (second,)
    assert fleet.tick(1e6) == (), "it was told once"


def test_a_work_that_is_late_again_is_given_twice_the_time() -> None:
    fleet = dispatcher(worker("a"), worker("b"), worker("c"))
    fleet.submit(jobs("one"))
    fleet.assignments(0.0)
    fleet.tick(1000.0)
    fleet.assignments(1000.0)
    assert fleet.tick(2999.0) == ()
    assert len(fleet.tick(3000.0)) == 1


def test_a_worker_that_is_slow_and_steady_is_late_but_once() -> None:
    fleet = dispatcher(worker("quick"), worker("slow"))
    fleet.submit(jobs(*(f"job{index}" for index in range(9))))
    begun_s = {lease.name: 0.0 for lease in fleet.assignments(0.0)}
    takes_s, late, done_by_slow = {"quick": 20.0, "slow": 200.0}, 0, 0
    for now in range(1, 800):
        late += len(fleet.tick(now))
        for lease in fleet.leases():
            if now - begun_s[lease.name] == takes_s[lease.worker]:
                answer = fleet.answered(lease.name, lease.works[0].name, now)
                fleet.returned(lease.name, now)
                done_by_slow += answer.is_first and lease.worker == "slow"
                for superfluous in answer.superfluous:
                    fleet.returned(superfluous.name, now)
        begun_s |= {lease.name: float(now) for lease in fleet.assignments(now)}
        if fleet.waiting() < 2:
            fleet.submit(jobs(f"more{now}"))
    assert late == 1
    assert done_by_slow >= 2


def test_a_slow_worker_is_not_waited_for_while_another_rests() -> None:
    fleet = dispatcher(worker("slow"))
    fleet.submit(jobs("one", "two", "three"))
    for begun_s, job, seconds in ((0.0, "one", 20.0), (100.0, "two", 200.0)):
        (lease,) = fleet.assignments(begun_s)
        fleet.answered(lease.name, job, begun_s + seconds)
        fleet.returned(lease.name, begun_s + seconds)
    (slow,) = fleet.assignments(1000.0)
    fleet.worker_up(worker("rests"))
    assert fleet.tick(1799.0) == ()
    assert fleet.tick(1800.0) == (slow,)


def test_a_late_worker_that_is_lost_in_the_end_changes_nothing_where_another_has_its_work() -> None:
    fleet = dispatcher(worker("slow"))
    fleet.submit(jobs("one"))
    fleet.assignments(0.0)
    fleet.tick(1000.0)
    fleet.worker_up(worker("quick"))
    fleet.assignments(1000.0)
    assert fleet.worker_lost("slow", 1001.0).again == ()
    fleet.worker_up(worker("idle"))
    assert fleet.assignments(1001.0) == ()


def test_a_work_fails_when_three_workers_were_lost_with_it() -> None:
    fleet = dispatcher()
    fleet.submit(jobs("poison"))
    for name in ("a", "b", "c"):
        fleet.worker_up(worker(name))
        assert len(fleet.assignments(0.0)) == 1
        loss = fleet.worker_lost(name, 1.0)
    assert [work.name for work in loss.failed] == ["poison"]
    assert fleet.unanswered() == ()


def test_of_a_packet_only_the_work_under_way_is_blamed_and_travels_alone() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(individuals(6))
    (lease,) = fleet.assignments(0.0)
    fleet.answered(lease.name, "individual-0", 1.0)
    fleet.worker_lost("a", 2.0)
    fleet.worker_up(worker("b"))
    (again,) = fleet.assignments(2.0)
    assert by_worker((again,)) == {"b": ("individual-1",)}
    fleet.answered(again.name, "individual-1", 3.0)
    fleet.returned(again.name, 3.0)
    assert by_worker(fleet.assignments(3.0)) == {"b": ("individual-2", "individual-3")}


def test_a_worker_that_is_dismissed_is_no_works_fault() -> None:
    fleet = dispatcher()
    fleet.submit(jobs("one"))
    for index in range(5):
        fleet.worker_up(worker(f"w{index}"))
        assert len(fleet.assignments(0.0)) == 1
        assert fleet.dismiss(f"w{index}", 1.0).failed == ()
    assert len(fleet.unanswered()) == 1


def test_a_worker_that_returns_without_an_answer_is_as_good_as_lost() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("one"))
    losses = [fleet.returned(fleet.assignments(0.0)[0].name, 1.0) for _ in range(3)]
    assert [work.name for work in losses[-1].failed] == ["one"]


def test_a_parked_worker_takes_packets_of_what_was_asked_and_nothing_else() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("search", "other"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q0", "q1"), 1.0)
    (packet,) = fleet.assignments(1.0)
    assert by_worker((packet,)) == {"a": ("q0",)}
    assert fleet.answered(packet.name, "q0", 2.0).resumed is None
    fleet.returned(packet.name, 2.0)
    (packet,) = fleet.assignments(2.0)
    assert fleet.answered(packet.name, "q1", 3.0).resumed == search
    fleet.returned(packet.name, 3.0)
    assert fleet.assignments(3.0) == (), "it goes on with its search"


def test_what_was_asked_goes_to_other_workers_of_the_device_before_whole_jobs() -> None:
    fleet = dispatcher(worker("a"), worker("b"), worker("gpu", "v100"))
    fleet.submit(jobs("search", "long"))
    search, long = fleet.assignments(0.0)
    fleet.submit(jobs("third"))
    fleet.park(search.name, questions(search, "q0", "q1", "q2"), 1.0)
    fleet.answered(long.name, "long", 1.0)
    fleet.returned(long.name, 1.0)
    assert by_worker(fleet.assignments(1.0)) == {"a": ("q0",), "b": ("q1",)}


def test_guesses_are_for_workers_that_have_nothing_else() -> None:
    fleet = dispatcher(worker("a"), worker("b"), worker("c"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q1"), 1.0)
    fleet.guess(search.name, questions(search, "g1", "g2", "g3"))
    fleet.submit(jobs("other"))
    assert fleet.waiting() == 2, "nobody waits for a guess"
    leases = fleet.assignments(1.0)
    assert by_worker(leases) == {"a": ("q1",), "b": ("other",), "c": ("g1",)}
    guess = next(lease for lease in leases if lease.worker == "c")
    fleet.answered(guess.name, "g1", 2.0)
    fleet.returned(guess.name, 2.0)
    assert by_worker(fleet.assignments(2.0)) == {"c": ("g2",)}
    packet = next(lease for lease in leases if lease.worker == "a")
    assert fleet.answered(packet.name, "q1", 3.0).resumed == search, "whatever became of guesses"
    assert fleet.withdraw_guesses(search.name) == ("g3",)
    assert {work.name for work in fleet.unanswered()} == {"search", "other", "g2"}


def test_a_guess_that_comes_true_is_waited_for_whether_or_not_somebody_has_begun_it() -> None:
    fleet = dispatcher(worker("a"), worker("b"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q1"), 1.0)
    fleet.guess(search.name, questions(search, "g1", "g2", group="model"))
    packet, guess = fleet.assignments(1.0)
    assert by_worker((packet, guess)) == {"a": ("q1",), "b": ("g1",)}
    fleet.answered(packet.name, "q1", 2.0)
    fleet.returned(packet.name, 2.0)
    fleet.park(search.name, [], 2.0, ["g1", "g2"])
    (second,) = fleet.assignments(2.0)
    assert by_worker((second,)) == {"a": ("g2",)}, "the asking worker takes what nobody has begun"
    assert fleet.answered(second.name, "g2", 3.0).resumed is None
    assert fleet.answered(guess.name, "g1", 4.0).resumed == search
    assert fleet.withdraw_guesses(search.name) == ()


def test_a_guess_whose_worker_is_lost_is_guessed_by_another_and_asked_where_it_came_true() -> None:
    fleet = dispatcher(worker("a"), worker("b"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q1"), 1.0)
    fleet.guess(search.name, questions(search, "g1"))
    packet, _ = fleet.assignments(1.0)
    assert [work.name for work in fleet.worker_lost("b", 2.0).again] == ["g1"]
    fleet.answered(packet.name, "q1", 2.0)
    fleet.returned(packet.name, 2.0)
    assert fleet.assignments(2.0) == (), "its asker is at work"
    fleet.park(search.name, [], 3.0, ["g1"])
    assert by_worker(fleet.assignments(3.0)) == {"a": ("g1",)}


def test_a_search_that_ends_takes_its_guesses_with_it() -> None:
    fleet = dispatcher(worker("a"), worker("b"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q1"), 1.0)
    fleet.guess(search.name, questions(search, "g1", "g2"))
    _, guess = fleet.assignments(1.0)
    fleet.answered(search.name, "search", 2.0)
    fleet.returned(search.name, 2.0)
    assert fleet.unanswered() == ()
    assert not fleet.answered(guess.name, "g1", 3.0).is_first
    fleet.guess(search.name, questions(search, "g9"))
    assert fleet.unanswered() == (), "guesses that come too late are nobody's"


def test_what_somebody_waits_for_goes_to_those_who_have_the_model_open_and_then_to_who_waits() -> None:
    fleet = dispatcher(worker("a"), worker("b"), worker("c"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q1", "q2"), 1.0)
    first, second = fleet.assignments(1.0)
    assert [lease.worker for lease in (first, second)] == ["a", "b"]
    for lease, name in ((first, "q1"), (second, "q2")):
        fleet.answered(lease.name, name, 2.0)
        fleet.returned(lease.name, 2.0)
    fleet.park(search.name, questions(search, "q3"), 3.0)
    assert by_worker(fleet.assignments(3.0)) == {"b": ("q3",)}


def test_a_search_that_is_lost_takes_what_it_asked_for_with_it() -> None:
    fleet = dispatcher(worker("a"), worker("b"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q0", "q1", "q2", "q3"), 1.0)
    packets = fleet.assignments(1.0)
    fleet.worker_lost("a", 2.0)
    (under_way,) = (lease for lease in packets if lease.worker == "b")
    assert not fleet.answered(under_way.name, under_way.works[0].name, 3.0).is_first
    fleet.returned(under_way.name, 3.0)
    assert by_worker(fleet.assignments(3.0)) == {"b": ("search",)}


def test_a_search_goes_on_when_a_question_of_its_fails() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "poison"), 1.0)
    losses = [fleet.returned(fleet.assignments(1.0)[0].name, 2.0) for _ in range(3)]
    loss = losses[-1]
    assert [work.name for work in loss.failed] == ["poison"]
    assert loss.resumed == (search,)


def test_the_time_that_a_search_waits_for_others_does_not_make_it_late() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("search"))
    (search,) = fleet.assignments(0.0)
    fleet.park(search.name, questions(search, "q0"), 900.0)
    (packet,) = fleet.assignments(900.0)
    fleet.answered(packet.name, "q0", 1800.0)
    fleet.returned(packet.name, 1800.0)
    assert fleet.tick(1899.0) == ()
    assert fleet.tick(1900.0) == (search,)


def test_workers_get_work_of_their_device_alone() -> None:
    fleet = dispatcher(worker("a", "v100"), worker("b", "h100"))
    fleet.submit([*jobs("one", device="h100"), *jobs("two", device="v100")])
    assert by_worker(fleet.assignments(0.0)) == {"a": ("two",), "b": ("one",)}


def test_a_worker_keeps_to_the_model_that_it_has_open() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit([Work(f"{group}{index}", "cpu", "cell", group) for index in range(2) for group in ("x", "y")])
    order = []
    while leases := fleet.assignments(0.0):
        order.append(leases[0].works[0].name)
        fleet.answered(leases[0].name, order[-1], 1.0)
        fleet.returned(leases[0].name, 1.0)
    assert order == ["x0", "x1", "y0", "y1"]


def test_a_machines_cpu_waits_for_its_gpus_and_they_for_it_when_their_turn_is_over() -> None:
    fleet = dispatcher(
        worker("gpu0", "v100", "node", "gpu"), worker("gpu1", "v100", "node", "gpu"), worker("cpu", "cpu", "node")
    )
    fleet.submit([*jobs(*(f"gpu-job-{index}" for index in range(9)), device="v100"), *jobs("cpu-job")])
    begun = fleet.assignments(0.0)
    assert set(by_worker(begun)) == {"gpu0", "gpu1"}
    (first, second), now = begun, 59.0
    assert fleet.answered(first.name, first.works[0].name, now).is_first
    fleet.returned(first.name, now)
    assert set(by_worker(fleet.assignments(now))) == {"gpu0"}, "it is still their turn"
    fleet.answered(second.name, second.works[0].name, 60.0)
    fleet.returned(second.name, 60.0)
    assert fleet.assignments(60.0) == (), "the CPU's turn begins when the last of them has ended"
    (last,) = fleet.leases()
    fleet.answered(last.name, last.works[0].name, 70.0)
    fleet.returned(last.name, 70.0)
    assert by_worker(fleet.assignments(70.0)) == {"cpu": ("cpu-job",)}


def test_withdrawn_work_is_given_to_nobody_and_its_holders_are_told() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("one", "two"))
    (lease,) = fleet.assignments(0.0)
    assert fleet.withdraw("two") == ()
    assert fleet.withdraw("one") == (lease,)
    assert not fleet.answered(lease.name, "one", 1.0).is_first
    fleet.returned(lease.name, 1.0)
    assert fleet.assignments(1.0) == ()


def test_names_are_used_once() -> None:
    fleet = dispatcher(worker("a"))
    fleet.submit(jobs("one"))
    with pytest.raises(ValueError, match="a work one already"):
        fleet.submit(jobs("one"))
    with pytest.raises(ValueError, match="a worker a already"):
        fleet.worker_up(worker("a"))


def test_the_expected_time_is_the_median_of_the_latest() -> None:
    durations = Durations()
    assert durations.expected_s("job", "cpu") is None
    for seconds in (1.0, 100.0, 3.0):
        durations.add("job", "cpu", seconds, "a")
    assert durations.expected_s("job", "cpu") == 3.0
    for _ in range(200):
        durations.add("job", "cpu", 7.0, "a")
    assert durations.expected_s("job", "cpu") == 7.0
    assert durations.expected_s("job", "v100") is None
