"""Takes groups out of a batching plan that cost more than they save."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from iosched.scheduler.batching.costs import BatchingCosts
from iosched.scheduler.batching.ensemble import Ensemble, Group
from iosched.scheduler.batching.plan import Plan, beside


def pruned(plan: Plan) -> Plan:
    """The plan without the groups that cost more than they save; each that is taken out makes the plan better.

    Groups are tried one by one, and chains of groups that hang together, until none of them is worth taking out. That
    is a local optimum, and no more. What was tried is tried again once something beside it has changed.

    Complexity: O(operators + edges) for each round, of which there is one more than there are rounds in which a group
    is taken out.
    """
    work = _Pruning(plan.ensemble, plan.costs, dict(plan.groups))
    while True:
        left, before = work.plan, len(work.groups)
        for groups in [*([group] for group in left.all_groups()), *_chains(left)]:
            work.try_without(groups)
        if len(work.groups) == before:
            return work.plan


@dataclass(eq=False)
class _Pruning:
    """A plan while groups are taken out of it.

    Attributes:
        ensemble: the models.
        costs: what groups are worth.
        groups: what is left.
        worth_us: what groups are worth that were asked for, by their first operators.
        changed: for operators when their group, or what that group is worth, last changed.
        tried: for each try when it was, and the operators on which its outcome depends, by the groups' first operators.
        clock: how many tries were made.
    """

    ensemble: Ensemble
    costs: BatchingCosts
    groups: dict[str, Group]
    worth_us: dict[str, float] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    tried: dict[tuple[str, ...], tuple[int, set[str]]] = field(default_factory=dict)
    clock: int = 0

    @property
    def plan(self) -> Plan:
        """What is left, as a plan, until that changes: a plan keeps what it finds out."""
        return Plan(self.ensemble, self.costs, self.groups)

    def try_without(self, gone: Sequence[Group]) -> None:
        """Take groups out if that makes the plan better, and they are all in it."""
        heads = tuple(group[0] for group in gone)
        names = {name for group in gone for name in group}
        if not names <= self.groups.keys() or self._is_known(heads):
            return
        plan = self.plan
        affected = names | {name for other in beside(plan, names) for name in plan.group(other)}
        self.clock += 1
        self.tried[heads] = self.clock, affected
        before_us = sum(self._worth_us(plan, head) for head in self._heads(affected))
        for name in names:
            del self.groups[name]
        plan = self.plan
        after_us = {head: plan.group_value_us(self.groups[head]) for head in self._heads(affected)}
        if sum(after_us.values()) <= before_us:
            self.groups.update((name, group) for group in gone for name in group)
            return
        self.worth_us.update(after_us)
        self.changed.update(dict.fromkeys(affected, self.clock))

    def _is_known(self, heads: tuple[str, ...]) -> bool:
        """Whether nothing has changed on which the outcome of a try depends."""
        if heads not in self.tried:
            return False
        when, affected = self.tried[heads]
        return all(self.changed.get(name, 0) <= when for name in affected)

    def _heads(self, names: Iterable[str]) -> set[str]:
        return {self.groups[name][0] for name in names if name in self.groups}

    def _worth_us(self, plan: Plan, head: str) -> float:
        if head not in self.worth_us:
            self.worth_us[head] = plan.group_value_us(self.groups[head])
        return self.worth_us[head]


def _chains(plan: Plan) -> list[list[Group]]:
    """Groups that hand results to each other in place, together."""
    found: list[list[Group]] = []
    links: dict[str, list[Group]] = {}
    for group in plan.all_groups():
        for port in range(len(plan.ensemble.reads[group[0]])):
            feeder = plan.feeder(group, port)
            if feeder is not None:
                links.setdefault(group[0], []).append(feeder)
                links.setdefault(feeder[0], []).append(group)
    seen: set[str] = set()
    for group in plan.all_groups():
        if group[0] in seen or group[0] not in links:
            continue
        seen.add(group[0])
        chain = [group]
        for each in chain:
            linked = {other[0]: other for other in links[each[0]] if other[0] not in seen}
            seen.update(linked)
            chain.extend(linked.values())
        found.append(chain)
    return found
