"""A batching plan: groups of batched operators, and their value on the edges of the graph.

The operands of a group at one port are *in place* if they are exactly the results of another group, of the same models
in the same order, or one tensor that the group takes unchanged. Otherwise they have to be joined. A result has to be
split if another operator reads it or a model returns it. The paper's costs are those of neighbours in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from iosched.models.batching.ensemble import Ensemble, Group
from iosched.scheduler.batching.costs import BatchingCosts


@dataclass(frozen=True, eq=False)
class Plan:
    """Groups of two and more operators of an ensemble, by operator; every other operator runs alone.

    Facts about a group are cached by its first operator: groups must not change under a plan.
    """

    ensemble: Ensemble
    costs: BatchingCosts
    groups: Mapping[str, Group] = field(default_factory=dict)
    _feeders: dict[tuple[str, int], Group | None] = field(default_factory=dict, init=False)
    _parted: dict[tuple[str, int], bool] = field(default_factory=dict, init=False)
    _values_us: dict[str, float] = field(default_factory=dict, init=False)

    def all_groups(self) -> tuple[Group, ...]:
        """Each group once, in the order of their first operators."""
        return tuple(dict.fromkeys(self.groups[name] for name in self.ensemble.order if name in self.groups))

    def group(self, name: str) -> Group:
        """The group of an operator, possibly of itself alone."""
        return self.groups.get(name, (name,))

    def with_pairs(self, pairs: Iterable[tuple[str, str]]) -> Plan:
        """The plan in which the first operator of each pair, which is in no group, joins the group of the second."""
        groups = dict(self.groups)
        for new, old in pairs:
            group = self.ensemble.joined(groups.get(old, (old,)), new)
            groups.update(dict.fromkeys(group, group))
        return Plan(self.ensemble, self.costs, groups)

    def without(self, gone: Iterable[Group]) -> Plan:
        """The plan without these groups."""
        kept = dict(self.groups)
        for group in gone:
            for name in group:
                del kept[name]
        return Plan(self.ensemble, self.costs, kept)

    def operands(self, group: Group, port: int) -> tuple[str, ...]:
        """The tensors that the group's operators read at one port."""
        return tuple(self.ensemble.reads[name][port] for name in group)

    def feeder(self, group: Group, port: int) -> Group | None:
        """The group whose results are in place at one port of `group`; None if they are not."""
        key = group[0], port
        if key not in self._feeders:
            self._feeders[key] = self._feeder(group, port)
        return self._feeders[key]

    def _feeder(self, group: Group, port: int) -> Group | None:
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
        """Whether operands have to be joined at one port of a group."""
        if len(group) < 2 or self.feeder(group, port) is not None:
            return False
        one_for_all = len(set(self.operands(group, port))) == 1
        return not (one_for_all and self.ensemble.likeness[group[0]].spreads)

    def is_parted(self, group: Group, index: int) -> bool:
        """Whether an output of a group has to be split."""
        key = group[0], index
        if key not in self._parted:
            self._parted[key] = self._is_parted(group, index)
        return self._parted[key]

    def _is_parted(self, group: Group, index: int) -> bool:
        """Whether a result is not in place for one of its readers, or a model returns it.

        A group with the output in place has one reader of each result. So all readers have it in place if those of the
        first result do, and every other result has the same number of readers.
        """
        if len(group) < 2:
            return False
        results, readers = self.results(group, index), self.ensemble.readers
        if not self.ensemble.returned.isdisjoint(results):
            return True
        ports = {(self.group(name), port) for name, port in readers.get(results[0], ())}
        if any(len(readers.get(tensor, ())) != len(ports) for tensor in results):
            return True
        return any(self.feeder(reading, port) != group for reading, port in ports)

    def group_value_us(self, group: Group) -> float:
        """Gain of a group minus the cost of joining and splitting its tensors."""
        if group[0] not in self._values_us:
            self._values_us[group[0]] = self.gain_us(group) - sum(self._paid(group))
        return self._values_us[group[0]]

    def value_us(self) -> float:
        """Saving of the plan over every operator on its own; O(operators + edges)."""
        return sum(self.group_value_us(group) for group in self.all_groups())

    def gain_us(self, group: Group) -> float:
        """See `BatchingCosts.gain_us`; 0 for a single operator."""
        operators = [self.ensemble.graph.by_name[name] for name in group]
        return self.costs.gain_us(operators, len(group)) if len(group) > 1 else 0.0

    def join_us(self, group: Group, port: int) -> float:
        """Cost of joining the operands of a group at one port; see `BatchingCosts.join_us`."""
        operand = self.ensemble.reads[group[0]][port]
        return self.costs.join_us(self.ensemble.graph.tensor[operand], len(group))

    def part_us(self, group: Group, index: int) -> float:
        """Cost of splitting one output of a group; see `BatchingCosts.part_us`."""
        result = self.ensemble.graph.by_name[group[0]].outputs[index]
        return self.costs.part_us(self.ensemble.graph.tensor[result], len(group))

    def _paid(self, group: Group) -> Iterator[float]:
        for port in range(len(self.ensemble.reads[group[0]])):
            if self.is_joined(group, port):
                yield self.join_us(group, port)
        for index in range(len(self.ensemble.graph.by_name[group[0]].outputs)):
            if self.is_parted(group, index):
                yield self.part_us(group, index)


def difference_us(before: Plan, after: Plan, changed: Iterable[str]) -> float:
    """Value of `after` minus that of `before`, if only the groups of these operators differ.

    Complexity: O(operators and edges of those groups and their neighbours).
    """
    groups = {plan.group(each) for each in changed for plan in (before, after)}
    names = {name for group in groups for name in group}
    names |= neighbours(after, names)
    return _value_us(after, names) - _value_us(before, names)


def _value_us(plan: Plan, names: Iterable[str]) -> float:
    heads = {plan.groups[name][0] for name in names if name in plan.groups}
    return sum(plan.group_value_us(plan.groups[head]) for head in heads)


def neighbours(plan: Plan, names: Iterable[str]) -> set[str]:
    """The predecessors and successors of these operators."""
    ensemble = plan.ensemble
    found: set[str] = set()
    for name in names:
        found.update(ensemble.graph.predecessors[name], ensemble.graph.successors[name])
    return found
