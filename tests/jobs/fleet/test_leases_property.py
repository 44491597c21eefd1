"""Whatever happens to workers and in which order: nothing is lost, and nothing is answered twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from iosched.jobs.fleet.backlog import LARGEST_PACKET, Work
from iosched.jobs.fleet.crew import WorkerFacts
from iosched.jobs.fleet.leases import Dispatcher, Lease, Loss
from iosched.jobs.fleet.patience import Patience

DEVICES = {"cpu": "cpu", "v100": "gpu"}
NODES = ("one", "two")
PATIENCE = Patience(factor=2.0, floor_s=5.0, unknown_s=20.0, losses=3, turn_s=10.0)


class Cluster(RuleBasedStateMachine):
    """Workers that come, work, wait, answer, are lost, and answer still."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Dispatcher(PATIENCE)
        self.now_s = 0.0
        self.workers: dict[str, WorkerFacts] = {}
        self.under_way: dict[str, Lease] = {}
        self.ghosts: list[Lease] = []
        self.done_under: dict[str, set[str]] = {}
        self.waits: dict[str, set[str]] = {}
        self.guesses: dict[str, set[str]] = {}
        self.answers: Counter[str] = Counter()
        self.submitted: dict[str, Work] = {}
        self.withdrawn: set[str] = set()
        self.losses: Counter[str] = Counter()
        self.largest: dict[tuple[str, str], int] = {}
        self.names = 0

    def _name(self, of_what: str) -> str:
        self.names += 1
        return f"{of_what}-{self.names}"

    @rule(device=st.sampled_from(sorted(DEVICES)), node=st.sampled_from(NODES))
    def worker_comes(self, device: str, node: str) -> None:
        facts = WorkerFacts(self._name("worker"), (device,), node, DEVICES[device])
        self.workers[facts.name] = facts
        self.fleet.worker_up(facts)

    @rule(device=st.sampled_from(sorted(DEVICES)), group=st.sampled_from("xy"), count=st.integers(1, 20))
    def individuals_are_submitted(self, device: str, group: str, count: int) -> None:
        self._submit([Work(self._name("work"), device, "individual", group, in_packets=True) for _ in range(count)])

    @rule(device=st.sampled_from(sorted(DEVICES)), count=st.integers(1, 3))
    def jobs_are_submitted(self, device: str, count: int) -> None:
        self._submit([Work(self._name("work"), device, "job") for _ in range(count)])

    def _submit(self, works: list[Work]) -> None:
        self._note(works)
        self.fleet.submit(works)

    def _note(self, works: Iterable[Work]) -> None:
        for work in works:
            self.submitted[work.name] = work
            self.largest[work.device, work.group] = LARGEST_PACKET

    @rule(seconds=st.floats(0.0, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.fleet.tick(self.now_s)

    @rule()
    def work_is_given_out(self) -> None:
        for lease in self.fleet.assignments(self.now_s):
            self._check_lease(lease)
            self.under_way[lease.name] = lease
            self.done_under[lease.name] = set()

    def _check_lease(self, lease: Lease) -> None:
        facts = self.workers[lease.worker]
        held = [each for each in self.under_way.values() if each.worker == lease.worker]
        assert len(held) <= 1
        assert all(self.waits[each.name] for each in held), "it was waiting for what it asked for"
        assert all(work.asker is not None for work in lease.works) or not held
        guesses = set().union(*self.guesses.values())
        assert not held or not guesses & {work.name for work in lease.works}, "others have nothing else"
        assert {work.device for work in lease.works} <= set(facts.devices)
        assert len({work.group for work in lease.works}) == 1
        assert len(lease.works) == 1 or all(work.in_packets for work in lease.works)
        assert not any(self.answers[work.name] for work in lease.works)
        key = lease.works[0].device, lease.works[0].group
        if lease.works[0].in_packets and not any(self.losses.values()):
            assert 1 <= len(lease.works) <= self.largest[key]
            self.largest[key] = len(lease.works)

    @precondition(lambda self: self._jobs_at_work())
    @rule(data=st.data(), count=st.integers(1, 9))
    def a_search_asks(self, data: st.DataObject, count: int) -> None:
        lease = data.draw(st.sampled_from(self._jobs_at_work()))
        device = lease.works[0].device
        works = [Work(self._name("work"), device, "question", "m", True, lease.name) for _ in range(count)]
        if not self._is_done(lease.works[0].name):
            self._note(works)
            self.waits[lease.name] = {work.name for work in works}
        self.fleet.park(lease.name, works, self.now_s)

    @precondition(lambda self: self._jobs_waiting())
    @rule(data=st.data(), count=st.integers(1, 4))
    def a_search_guesses(self, data: st.DataObject, count: int) -> None:
        lease = data.draw(st.sampled_from(self._jobs_waiting()))
        device = lease.works[0].device
        works = [Work(self._name("guess"), device, "question", "m", True, lease.name) for _ in range(count)]
        if not self._is_done(lease.works[0].name):
            self._note(works)
            self.guesses.setdefault(lease.name, set()).update(work.name for work in works)
        self.fleet.guess(lease.name, works)

    @precondition(lambda self: any(self.guesses.get(lease.name) for lease in self._jobs_at_work()))
    @rule(data=st.data())
    def guesses_come_true(self, data: st.DataObject) -> None:
        askers = [lease for lease in self._jobs_at_work() if self.guesses.get(lease.name)]
        lease = data.draw(st.sampled_from(askers))
        names = data.draw(st.lists(st.sampled_from(sorted(self.guesses[lease.name])), min_size=1, unique=True))
        if not self._is_done(lease.works[0].name):
            self.guesses[lease.name] -= set(names)
            self.waits[lease.name] = {name for name in names if not self._is_done(name)}
        self.fleet.park(lease.name, [], self.now_s, names)

    @rule(data=st.data())
    def guesses_are_withdrawn(self, data: st.DataObject) -> None:
        if not self.under_way:
            return
        lease = data.draw(st.sampled_from(sorted(self.under_way)))
        unbegun = self.fleet.withdraw_guesses(lease)
        held = {work.name for each in self.under_way.values() for work in each.works}
        assert set(unbegun) <= self.guesses.get(lease, set()) - held
        self.withdrawn |= set(unbegun)

    def _jobs_waiting(self) -> list[Lease]:
        jobs = [lease for lease in self.under_way.values() if lease.works[0].kind == "job"]
        return [lease for lease in jobs if self.waits.get(lease.name)]

    def _jobs_at_work(self) -> list[Lease]:
        jobs = [lease for lease in self.under_way.values() if lease.works[0].kind == "job"]
        return [lease for lease in jobs if not self.waits.setdefault(lease.name, set())]

    @precondition(lambda self: self._answerable())
    @rule(data=st.data())
    def a_work_is_answered(self, data: st.DataObject) -> None:
        lease, work = data.draw(st.sampled_from(self._answerable()))
        self._answer(lease, work)

    def _answerable(self) -> list[tuple[Lease, Work]]:
        leases = [*self.under_way.values(), *self.ghosts]
        return [
            (lease, work)
            for lease in leases
            for work in lease.works
            if work.name not in self.done_under[lease.name] and not self.waits.get(lease.name)
        ]

    def _answer(self, lease: Lease, work: Work) -> None:
        self.done_under[lease.name].add(work.name)
        answer = self.fleet.answered(lease.name, work.name, self.now_s)
        assert answer.is_first != self._is_done(work.name)
        self._resume(work, answer.resumed)
        if answer.is_first:
            self.answers[work.name] += 1
        self._forget_waits()

    def _resume(self, work: Work, resumed: Lease | None) -> None:
        waits = self.waits.get(work.asker or "", set())
        was_last = waits == {work.name} and not self._is_done(work.name)
        assert (resumed is not None) == (was_last and work.asker in self.under_way)
        waits.discard(work.name)

    def _is_done(self, name: str) -> bool:
        return self.answers[name] > 0 or name in self.withdrawn

    def _forget_waits(self) -> None:
        """What was asked for by a search that has its answer from elsewhere is waited for by nobody."""
        for lease in [*self.under_way.values(), *self.ghosts]:
            if all(self._is_done(work.name) for work in lease.works) or lease.name not in self.under_way:
                forgotten = self.waits.pop(lease.name, set()) | self.guesses.pop(lease.name, set())
                self.withdrawn |= {name for name in forgotten if not self.answers[name]}

    @precondition(lambda self: self._finished())
    @rule(data=st.data())
    def a_lease_ends(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self._finished())))

    def _finished(self) -> list[Lease]:
        leases = self.under_way.values()
        return [lease for lease in leases if len(self.done_under[lease.name]) == len(lease.works)]

    def _end(self, lease: Lease) -> None:
        del self.under_way[lease.name]
        assert self.fleet.returned(lease.name, self.now_s) == Loss()
        self._forget_waits()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), is_lost=st.booleans())
    def a_worker_goes(self, data: st.DataObject, is_lost: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        del self.workers[name]
        gone = [lease for lease in self.under_way.values() if lease.worker == name]
        for lease in gone:
            del self.under_way[lease.name]
            self.ghosts.append(lease)
            self.losses.update(work.name for work in lease.works if is_lost)
        loss = self.fleet.worker_lost(name, self.now_s) if is_lost else self.fleet.dismiss(name, self.now_s)
        for work in loss.failed:
            assert self.losses[work.name] >= PATIENCE.losses
            assert not self._is_done(work.name)
            self.answers[work.name] += 1
            self.waits.get(work.asker or "", set()).discard(work.name)
        self._forget_waits()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def a_work_is_withdrawn(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.submitted)))
        if self.submitted[name].asker is None:
            self.fleet.withdraw(name)
            self.withdrawn |= set() if self.answers[name] else {name}
            self._forget_waits()

    @invariant()
    def what_has_no_answer_is_known(self) -> None:
        open_works = {name for name in self.submitted if not self._is_done(name)}
        assert {work.name for work in self.fleet.unanswered()} == open_works

    @invariant()
    def a_machines_cpu_and_its_gpus_do_not_work_at_a_time(self) -> None:
        for node in NODES:
            at_work = {self.workers[lease.worker] for lease in self.under_way.values()}
            assert len({facts.side for facts in at_work if facts.node == node}) <= 1

    def teardown(self) -> None:
        """With one good worker for each device, all work is done in the end, whatever hangs elsewhere."""
        for name in sorted(self.workers):
            self.fleet.dismiss(name, self.now_s)
        self.ghosts += self.under_way.values()
        self.workers, self.under_way = {}, {}
        self._forget_waits()
        for device, side in DEVICES.items():
            facts = WorkerFacts(f"good-{device}", (device,), "good", side)
            self.workers[facts.name] = facts
            self.fleet.worker_up(facts)
        for _ in range(2 * len(self.submitted) + 2):
            self.work_is_given_out()
            for lease in list(self.under_way.values()):
                for work in lease.works:
                    self._answer(lease, work)
                self._end(lease)
        assert {name for name in self.submitted if not self._is_done(name)} == set()
        assert set(self.answers.values()) <= {0, 1}


TestCluster = Cluster.TestCase
TestCluster.settings = settings(stateful_step_count=40)
