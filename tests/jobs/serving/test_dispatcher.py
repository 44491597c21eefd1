"""The order of requests and their cores: rules that hold after every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.serving.dispatcher import Dispatcher, Start, blocks_of
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.models.errors import BusyError, UsageError
from iosched.runtime.shared_cores import Block

MODELS = ("a", "b", "c")

steps = st.lists(st.tuples(st.sampled_from((0.1, 0.3, 0.6, 0.9)), st.integers(1, 5)), unique_by=lambda each: each[0])
model_policies = st.builds(
    ModelPolicy, steps.map(lambda found: tuple(sorted(found))), st.integers(-2, 2), st.integers(0, 3)
)
policies = st.builds(
    ServingPolicy,
    st.fixed_dictionaries(dict.fromkeys(MODELS, model_policies)),
    priority_s=st.sampled_from((0.0, 0.1, 10.0)),
    length_weight=st.sampled_from((0.0, 4.0)),
    overlap_ratio=st.sampled_from((None, 0.5, 3.0)),
)
events = st.lists(
    st.tuples(st.sampled_from(("arrive", "arrive", "end", "give up")), st.integers(0, 99), st.floats(0, 0.5)),
    max_size=40,
)


@dataclass
class Checked:
    """A dispatcher with a record of each request, checked after every event."""

    dispatcher: Dispatcher
    now_s: float = 0.0
    numbers: count[int] = field(default_factory=count)
    model: dict[int, str] = field(default_factory=dict)
    waiting: dict[int, float] = field(default_factory=dict)  # when it is due
    running: dict[int, Block] = field(default_factory=dict)

    def arrive(self, name: str) -> int | None:
        number, own = next(self.numbers), self.dispatcher.policy.models[name]
        is_free = len(self._taken()) < self.dispatcher.cores
        is_full = Counter(self.model[each] for each in self.waiting)[name] >= own.most_waiting
        self.model[number] = name
        try:
            starts = self.dispatcher.arrived(number, name, self.now_s)
        except BusyError:
            assert is_full
            assert not is_free
            self.check([])
            return None
        assert is_free or not is_full
        work_s = self.dispatcher._work_s(name)
        policy = self.dispatcher.policy
        self.waiting[number] = self.now_s - own.priority * policy.priority_s + work_s * policy.length_weight
        self.check(starts)
        return number

    def end(self, number: int) -> None:
        self.running.pop(number, None)
        self.waiting.pop(number, None)
        self.check(self.dispatcher.ended(number, self.now_s))

    def check(self, starts: list[Start]) -> None:
        for start in starts:
            assert isinstance(start.request, int)
            due_s = self.waiting.pop(start.request)
            if start.block == self.dispatcher.shared:
                self.check_overlap(start.request)
                continue
            assert due_s <= min(self.waiting.values(), default=float("inf"))
            assert start.block in blocks_of(len(start.block), self.dispatcher.cores)
            own = self.dispatcher.policy.models[self.model[start.request]]
            assert len(start.block) in own.sizes(self.dispatcher.cores)
            assert not self._taken().intersection(start.block)
            self.running[start.request] = start.block
        assert self.dispatcher.running == self.running
        assert list(self.dispatcher.waiting) == sorted(self.waiting, key=lambda each: (self.waiting[each], each))
        assert not self.waiting or len(self._taken()) == self.dispatcher.cores, "a core is idle while a request waits"

    def check_overlap(self, number: int) -> None:
        assert self.dispatcher.policy.overlap_ratio is not None
        assert len(self._taken()) == self.dispatcher.cores
        assert self.dispatcher.shared not in self.running.values()
        assert self.dispatcher._work_s(self.model[number]) > 0
        self.running[number] = self.dispatcher.shared

    def _taken(self) -> set[int]:
        return {core for block in self.running.values() for core in block} - {self.dispatcher.cores}


@given(cores=st.integers(1, 6), policy=policies, events=events)
def test_no_core_is_idle_while_a_request_waits_and_no_request_is_lost(
    cores: int, policy: ServingPolicy, events: list[tuple[str, int, float]]
) -> None:
    checked = Checked(Dispatcher(cores, policy))
    for kind, which, after_s in events:
        checked.now_s += after_s
        if kind == "arrive":
            checked.arrive(MODELS[which % len(MODELS)])
            continue
        found = sorted(checked.running if kind == "end" else checked.waiting)
        if found:
            checked.end(found[which % len(found)])
    while checked.running:
        checked.now_s += 0.01
        checked.end(min(checked.running))
    assert not checked.waiting


@given(events=st.lists(st.sampled_from("abc"), min_size=4, max_size=20), taken=st.integers(0, 10))
def test_waiting_requests_are_dropped_and_running_ones_are_not(events: list[str], taken: int) -> None:
    checked = Checked(Dispatcher(2, ServingPolicy({name: ModelPolicy() for name in MODELS})))
    for name in events:
        checked.arrive(name)
    assert list(checked.dispatcher.drop_waiting()) == list(checked.waiting)
    checked.waiting.clear()
    checked.check([])
    for number in list(checked.running):
        checked.end(number)
    assert checked.arrive(MODELS[taken % 3]) in checked.running


def test_under_low_load_each_request_gets_all_cores_in_turn() -> None:
    dispatcher = Dispatcher(4)
    assert dispatcher.arrived(1, "a", 0.0) == [Start(1, (0, 1, 2, 3))]
    assert dispatcher.arrived(2, "a", 0.0) == []
    assert dispatcher.arrived(3, "b", 0.0) == []
    assert dispatcher.ended(1, 0.1) == [Start(2, (0, 1, 2, 3))]
    assert dispatcher.ended(2, 0.2) == [Start(3, (0, 1, 2, 3))]


def test_under_load_a_request_gets_fewer_cores() -> None:
    """A run takes 80 ms on one core and 50 ms on two."""
    dispatcher, ends, sizes = Dispatcher(2), list[tuple[float, Hashable]](), list[int]()

    def begin(starts: list[Start], now_s: float) -> None:
        for start in starts:
            sizes.append(len(start.block))
            ends.append((now_s + (0.05 if sizes[-1] == 2 else 0.08), start.request))

    def last_sizes(numbers: range, every_s: float) -> set[int]:
        for number in numbers:
            while ends and min(ends)[0] <= number * every_s:
                at_s, over = ends.pop(ends.index(min(ends)))
                begin(dispatcher.ended(over, at_s), at_s)
            begin(dispatcher.arrived(number, "a", number * every_s), number * every_s)
        return set(sizes[-50:])

    assert last_sizes(range(200), 0.1) == {2}
    assert dispatcher.load == pytest.approx(0.4, rel=0.1)  # by the fewest core seconds of a run
    assert last_sizes(range(400, 800), 0.05) == {1}
    assert dispatcher.load == pytest.approx(0.8, rel=0.1)


def test_cores_that_shorten_no_run_are_left_to_others() -> None:
    def first_size(policy: ServingPolicy, run_s: dict[int, float]) -> int:
        dispatcher = Dispatcher(4, policy)
        dispatcher.opened("a", run_s)
        (start,) = dispatcher.arrived(1, "a", 0.0)
        return len(start.block)

    assert first_size(ServingPolicy(), {}) == 4
    assert first_size(ServingPolicy(), {1: 0.1, 2: 0.06, 4: 0.04}) == 4
    assert first_size(ServingPolicy(), {1: 0.1, 2: 0.06, 4: 0.058}) == 2
    assert first_size(ServingPolicy(), {1: 0.1, 2: 0.095, 4: 0.2}) == 1
    assert first_size(ServingPolicy({"a": ModelPolicy(((1.0, 2),))}), {1: 0.1, 2: 0.2}) == 2


def test_a_replaced_model_starts_with_new_run_times() -> None:
    dispatcher = Dispatcher(1)
    dispatcher.opened("a", {1: 5.0})
    dispatcher.arrived("long", "a", 0.0)
    assert dispatcher.load == 2.5  # 5 core seconds in 2 seconds
    dispatcher.ended("long", 5.0)
    dispatcher.opened("a", {1: 0.2})
    dispatcher.load = 0.0
    dispatcher.arrived("short", "a", 5.0)
    assert dispatcher.load == pytest.approx(0.1)


def test_the_policy_sets_the_cores_by_load() -> None:
    own = ModelPolicy(((0.2, 4), (0.5, 2)))
    assert [own.most_cores(load, 4) for load in (0.0, 0.2, 0.3, 0.5, 0.6, 9.0)] == [4, 4, 2, 2, 1, 1]
    assert own.most_cores(0.0, 2) == 2
    assert own.sizes(4) == (4, 2, 1)
    assert own.sizes(3) == (3, 2, 1)
    assert [ModelPolicy().sizes(cores) for cores in (1, 2, 3, 4)] == [(1,), (2, 1), (3, 1), (4, 2, 1)]
    assert [ModelPolicy().sizes(cores) for cores in (6, 8, 16)] == [(6, 1), (8, 2, 1), (16, 4, 1)]
    assert [ModelPolicy().most_cores(load, 2) for load in (0.0, 0.4, 0.5, 0.9)] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("cores", "waiting"), [(((0.5, 2), (0.1, 1)), 64), (((0.1, 0),), 64), (((0.1, 1), (0.1, 2)), 64), ((), -1)]
)
def test_a_wrong_policy_is_refused(cores: tuple[tuple[float, int], ...], waiting: int) -> None:
    with pytest.raises(UsageError):
        ModelPolicy(cores, most_waiting=waiting)


def test_a_short_request_passes_long_ones_but_a_long_one_is_not_passed_forever() -> None:
    dispatcher = Dispatcher(1, ServingPolicy(overlap_ratio=None))
    dispatcher.arrived("warm long", "long", 0.0)
    dispatcher.ended("warm long", 0.1)
    dispatcher.arrived("warm short", "short", 0.1)
    dispatcher.ended("warm short", 0.11)
    assert dispatcher.arrived("running", "long", 1.0) == [Start("running", (0,))]
    assert dispatcher.arrived("long", "long", 1.0) == []
    assert dispatcher.arrived("short", "short", 1.02) == []
    assert dispatcher.arrived("late short", "short", 1.5) == []
    assert dispatcher.waiting == ("short", "long", "late short")


def test_a_request_much_shorter_than_all_running_ones_shares_their_cores() -> None:
    def dispatcher(ratio: float | None) -> Dispatcher:
        found = Dispatcher(1, ServingPolicy(overlap_ratio=ratio))
        for name, run_s in (("long", 1.0), ("short", 0.1)):
            found.arrived(name, name, 0.0)
            found.ended(name, run_s)
        found.arrived("running", "long", 10.0)
        return found

    assert dispatcher(3.0).arrived("late", "short", 10.71) == []
    assert dispatcher(3.0).arrived("unknown", "unknown", 10.1) == []
    assert dispatcher(None).arrived("off", "short", 10.1) == []
    found = dispatcher(3.0)
    assert found.arrived("long", "long", 10.0) == []
    assert found.arrived("one", "short", 10.1) == [Start("one", found.shared)]
    assert found.arrived("two", "short", 10.1) == []
    assert found.ended("one", 10.3) == [Start("two", found.shared)]
    assert found.ended("running", 11.0) == [Start("long", (0,))]
    assert found.arrived("three", "short", 11.0) == []
    assert found.ended("two", 11.1) == [Start("three", found.shared)]
    assert found._work_s("short") == pytest.approx(0.1), "runs that share cores do not count"


def test_priority_comes_first_until_age_outweighs_it() -> None:
    dispatcher = Dispatcher(1, ServingPolicy({"high": ModelPolicy(priority=1, most_waiting=10**6)}, priority_s=0.1))
    dispatcher.arrived("running", "high", 0.0)
    dispatcher.arrived("low", "low", 0.0)
    numbers, now_s = count(), 0.0
    started: list[object] = []
    running: object = "running"
    while "low" not in started:  # two of high priority arrive while one runs
        now_s += 0.01
        for _ in range(2):
            dispatcher.arrived(next(numbers), "high", now_s)
        (start,) = dispatcher.ended(running, now_s)
        running = start.request
        started.append(running)
    assert started[0] == 0
    assert 0.05 < now_s <= 0.25
