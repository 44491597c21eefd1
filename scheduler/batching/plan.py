"""A batching plan: the groups of operators that become one, and what they are worth on the edges that are there.

The operands of a group at one port are *in place* where they are exactly the results of another group, of the same
models in the same order, or one tensor that the group takes as it is. Else they have to be joined; and a result that is
read anywhere but in place, or that a model returns, has to be parted. The paper's costs go by neighbours in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from iosched.scheduler.batching.costs import BatchingCosts
from iosched.scheduler.batching.ensemble import Ensemble, Group


@dataclass(frozen=True, eq=False)
class Plan:
    """Groups of two and more operators of an ensemble; every other operator runs on its own.

    Attributes:
        ensemble: the models.
        costs: what groups are worth.
        groups: for every operator in a group that group.
    """

    ensemble: Ensemble
    costs: BatchingCosts
    groups: Mapping[str, Group] = field(default_factory=dict)

    def all_groups(self) -> tuple[Group, ...]:
        """Each group once, in the order of their first operators."""
        return tuple(dict.fromkeys(self.groups[name] for name in self.ensemble.order if name in self.groups))

    def group(self, name: str) -> Group:
        """The group of an operator, which may be of itself alone."""
        return self.groups.get(name, (name,))

    def with_pairs(self, pairs: Iterable[tuple[str, str]]) -> Plan:
        """The plan in which the first operator of each pair, which is in no group, joins the group of the second."""
        groups = dict(self.groups)
        for new, old in pairs:
            group = self.ensemble.group(frozenset((new, *groups.get(old, (old,)))))
            groups.update(dict.fromkeys(group, group))
        return Plan(self.ensemble, self.costs, groups)

    def without(self, gone: Iterable[Group]) -> Plan:
        """The plan in which the operators of these groups run on their own."""
        names = {name for group in gone for name in group}
        kept = {name: group for name, group in self.groups.items() if name not in names}
        return Plan(self.ensemble, self.costs, kept)

    def operands(self, group: Group, port: int) -> tuple[str, ...]:
        """What the group's operators read at one port."""
        return tuple(self.ensemble.reads[name][port] for name in group)

    def feeder(self, group: Group, port: int) -> Group | None:
        """The group whose results are in place at one port of `group`; None where they are not."""
        operands = self.operands(group, port)
        source = self.ensemble.source.get(operands[0])
        if len(group) < 2 or source is None:
            return None
        feeder = self.group(source[0])
        is_whole = len(feeder) == len(group) and operands == self.results(feeder, source[1])
        return feeder if is_whole else None

    def results(self, group: Group, index: int) -> tuple[str, ...]:
        """One output of each of the group's operators."""
        return tuple(self.ensemble.graph.by_name[name].outputs[index] for name in group)

    def is_joined(self, group: Group, port: int) -> bool:
        """Whether operands have to be brought together at one port of a group."""
        if len(group) < 2 or self.feeder(group, port) is not None:
            return False
        one_for_all = len(set(self.operands(group, port))) == 1
        return not (one_for_all and self.ensemble.likeness[group[0]].spreads)

    def is_parted(self, group: Group, index: int) -> bool:
        """Whether an output of a group has to be taken apart."""
        if len(group) < 2:
            return False
        results = self.results(group, index)
        if not self.ensemble.returned.isdisjoint(results):
            return True
        readers = (reader for tensor in results for reader in self.ensemble.readers.get(tensor, ()))
        return any(self.feeder(self.group(name), port) != group for name, port in readers)

    def group_value_us(self, group: Group) -> float:
        """Gain of a group less what is paid to join and to part its tensors."""
        return self.gain_us(group) - sum(self._paid(group))

    def value_us(self) -> float:
        """How much faster the plan is than every operator on its own; O(operators + edges)."""
        return sum(self.group_value_us(group) for group in self.all_groups())

    def gain_us(self, group: Group) -> float:
        """See `BatchingCosts.gain_us`; nothing for a single operator."""
        operators = [self.ensemble.graph.by_name[name] for name in group]
        return self.costs.gain_us(operators, len(group)) if len(group) > 1 else 0.0

    def join_us(self, tensors: Sequence[str]) -> float:
        """See `BatchingCosts.join_us`."""
        return self.costs.join_us(self.ensemble.graph.tensor[tensors[0]], len(tensors))

    def part_us(self, tensors: Sequence[str]) -> float:
        """See `BatchingCosts.part_us`."""
        return self.costs.part_us(self.ensemble.graph.tensor[tensors[0]], len(tensors))

    def _paid(self, group: Group) -> Iterator[float]:
        for port in range(len(self.ensemble.reads[group[0]])):
            if self.is_joined(group, port):
                yield self.join_us(self.operands(group, port))
        for index in range(len(self.ensemble.graph.by_name[group[0]].outputs)):
            if self.is_parted(group, index):
                yield self.part_us(self.results(group, index))


def neighbours(plan: Plan, group: Group) -> set[Group]:
    """The groups that `group` reads from, and those that read from it: their joins and parts may change with it."""
    ensemble = plan.ensemble
    found = set()
    for name in group:
        for tensor in ensemble.reads[name]:
            if tensor in ensemble.source:
                found.add(plan.group(ensemble.source[tensor][0]))
        for tensor in ensemble.graph.by_name[name].outputs:
            found.update(plan.group(reader) for reader, _ in ensemble.readers.get(tensor, ()))
    return {other for other in found if len(other) > 1 and other != group}


def pruned(plan: Plan) -> Plan:
    """The plan without the groups that cost more than they save; each that is taken out makes the plan better.

    Groups are tried one by one, and chains of groups that hang together, until none of them is worth taking out. That
    is a local optimum, and no more. Complexity: O(groups * (operators + edges of a chain)) for each round.
    """
    while True:
        sets = [*([group] for group in plan.all_groups()), *_chains(plan)]
        gone = next((groups for groups in sets if _loss_us(plan, groups) < 0), None)
        if gone is None:
            return plan
        plan = plan.without(gone)


def _loss_us(plan: Plan, groups: list[Group]) -> float:
    """What the plan loses without these groups; negative where it gets better."""
    rest = plan.without(groups)
    around = {other for group in groups for other in neighbours(plan, group)} - set(groups)
    before = sum(plan.group_value_us(group) for group in (*groups, *around))
    return before - sum(rest.group_value_us(group) for group in around)


def _chains(plan: Plan) -> list[list[Group]]:
    """Groups that hand results to each other in place, together."""
    found: list[list[Group]] = []
    seen: set[Group] = set()
    for start in plan.all_groups():
        if start in seen:
            continue
        seen.add(start)
        chain = [start]
        for group in chain:
            linked = [other for other in neighbours(plan, group) if other not in seen and _linked(plan, group, other)]
            seen.update(linked)
            chain.extend(linked)
        if len(chain) > 1:
            found.append(chain)
    return found


def _linked(plan: Plan, one: Group, other: Group) -> bool:
    pairs = ((one, other), (other, one))
    return any(
        plan.feeder(reader, port) == feeder
        for feeder, reader in pairs
        for port in range(len(plan.ensemble.reads[reader[0]]))
    )
