"""Finds the first operator of a model whose values differ from onnxruntime's, and the cause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from iosched.jobs.bisect_mismatch.difference import Cause, FirstDifference, position_of
from iosched.jobs.bisect_mismatch.model_pair import FAILURES, MismatchCase
from iosched.models.graph import ComputationGraph
from iosched.runtime.compare import Check, combine


def first_difference(case: MismatchCase) -> FirstDifference | None:
    """The first operator that differs on the way to the first output that does.

    None if no output of an operator differs any more: in a run of its own, on the model as it was loaded.

    Complexity: the model is compiled and run about log2 of its operators times, on the device and on onnxruntime, each
    time with a few tensors more among its outputs.
    """
    search = _Search(case)
    outputs = case.model.graph.outputs
    checks = search.checks(outputs)
    producer = case.model.graph.producer
    by_operator: dict[str, bool] = {}
    for name, check in checks.items():
        if name in producer:
            by_operator[producer[name]] = by_operator.get(producer[name], True) and check.passed
    differing = [name for name, passed in by_operator.items() if not passed]
    if not differing:
        return None
    alike = [name for name, passed in by_operator.items() if passed]
    found = find_differing(case.model.graph, _order(case), differing, alike, search.look)
    return search.described(found)


def _order(case: MismatchCase) -> Sequence[str]:
    """Operators in schedule order if that covers exactly the graph, else in graph order."""
    in_graph = [operator.name for operator in case.model.graph.operators]
    if case.document is None:
        return in_graph
    scheduled = [name for stage in case.document.schedule.stages for name in stage.operators]
    place = {name: number for number, name in enumerate(scheduled)}
    before = case.model.graph.predecessors
    fits = place.keys() == set(in_graph) and all(place[one] < place[name] for name in in_graph for one in before[name])
    return scheduled if fits else in_graph


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


@dataclass(eq=False)
class _Search:
    """Inspects intermediate tensors.

    Attributes:
        seen: checks by tensor.
        vanished: whether outputs were correct in a run that was inspected.
        runs: the number of inspecting runs; above the number of looks if tensors could not be returned together.
    """

    case: MismatchCase
    seen: dict[str, Check] = field(default_factory=dict)
    wrong_outputs: frozenset[str] = frozenset()
    vanished: bool = False
    runs: int = 0

    def checks(self, outputs: Sequence[str]) -> Mapping[str, Check]:
        found = self.case.compared(self.case.computed(()), self.case.expected(outputs))
        self.wrong_outputs = frozenset(name for name, check in found.items() if not check.passed)
        self.seen |= found
        return found

    def look(self, operators: Sequence[str]) -> Mapping[str, bool]:
        """See `Look`. Tensors whose inspection makes the fault vanish count as unseen."""
        by_name = self.case.model.graph.by_name
        wanted = {name: by_name[name].outputs for name in operators}
        seen = self._seen([tensor for outputs in wanted.values() for tensor in outputs])
        if seen is None:
            return {} if len(operators) == 1 else {k: v for name in operators for k, v in self.look([name]).items()}
        self.seen |= seen
        return {
            name: all(seen[tensor].passed for tensor in outputs if tensor in seen)
            for name, outputs in wanted.items()
            if name in seen
        }

    def _seen(self, tensors: Sequence[str]) -> Mapping[str, Check] | None:
        expected = self.case.expected((*tensors, *self.wrong_outputs))
        if not any(name in expected for name in tensors):
            return {}
        self.runs += 1
        try:
            computed = self.case.computed([name for name in tensors if name in expected])
        except FAILURES:
            return None
        found = self.case.compared(computed, expected)
        if all(found[name].passed for name in self.wrong_outputs if name in found):
            self.vanished = True
            return None
        return {name: found[name] for name in tensors if name in found}

    def described(self, found: Differing) -> FirstDifference:
        graph = self.case.model.graph
        operator = graph.by_name[found.operator]
        own = combine([self.seen[name] for name in operator.outputs if name in self.seen])
        inputs_max_rel, cause = self._alone([*found.unseen, found.operator]) if found.is_complete else (None, None)
        document = self.case.document
        return FirstDifference(
            operator=operator.name,
            type=operator.type,
            unseen=found.unseen,
            place=position_of(None if document is None else document.schedule, operator.name),
            max_abs=_finite(own.max_abs),
            max_rel=_finite(own.max_rel),
            inputs_max_rel=inputs_max_rel,
            reason=own.reasons[0],
            cause=cause,
            vanishes=self.vanished,
            is_complete=found.is_complete,
            looks=self.runs,
        )

    def _alone(self, operators: Sequence[str]) -> tuple[float | None, Cause | None]:
        """The error of these operators' inputs, and the cause by onnxruntime's results from the same inputs."""
        case, graph = self.case, self.case.model.graph
        outputs = graph.by_name[operators[-1]].outputs
        written = {name for each in operators for name in graph.by_name[each].outputs}
        read = dict.fromkeys(name for each in operators for name in graph.by_name[each].inputs if name not in written)
        between = [name for name in read if name in graph.producer]
        try:
            computed = case.computed([*between, *outputs])
        except FAILURES:
            return None, None
        checks = case.compared(computed, case.expected(between))
        off = _finite(max((check.max_rel for check in checks.values()), default=0.0))
        given = {**case.inputs, **computed}
        if any(name not in given for name in read) or not {*outputs} <= {*computed}:
            return off, None
        if all(check.passed for check in case.compared(computed, case.expected(outputs)).values()):
            self.vanished = True
            return off, None
        return off, self._cause(operators, given, outputs)

    def _cause(self, operators: Sequence[str], given: Mapping[str, object], outputs: Sequence[str]) -> Cause | None:
        case = self.case
        ran = {name: given[name] for name in outputs}

        def agrees(expected: Mapping[str, object] | None) -> bool | None:
            return None if expected is None else all(c.passed for c in case.compared(ran, expected).values())

        own = agrees(case.alone(case.model, operators, given, outputs))
        (original, *others) = case.originals
        if others or original.prefix:
            return {None: None, False: "runtime", True: None}[own]
        theirs = own if original.model is case.model else agrees(case.alone(original.model, operators, given, outputs))
        if theirs:
            return "rounding"
        if own is False:
            return "runtime"
        return "model" if own and theirs is False else None


Look = Callable[[Sequence[str]], Mapping[str, bool]]
"""Maps operators to whether their results are correct; leaves out those that cannot be inspected."""


@dataclass(frozen=True)
class Differing:
    """An operator that differs, though nothing that it reads does.

    Attributes:
        unseen: operators right before it, in order, that could not be inspected: it may be one of them.
        looks: the number of looks.
        is_complete: whether the search finished; if not, `unseen` are all remaining suspects.
    """

    operator: str
    unseen: tuple[str, ...]
    looks: int
    is_complete: bool


def find_differing(
    graph: ComputationGraph,
    order: Sequence[str],
    differing: Collection[str],
    alike: Collection[str],
    look: Look,
    most_looks: int = 64,
) -> Differing:
    """Finds an operator that differs while its inputs are correct, among the ancestors of one that differs.

    Each look inspects a cut: the suspects up to the middle whose results are read after it. If all are correct, the
    fault is after the cut, else at or before the first incorrect one. Differences that vanish again or begin elsewhere
    do not matter: the operator found differs, and all its inputs are correct.

    Args:
        order: all operators in the order in which they run, which is a topological one.
        differing: operators known to differ, at least one; the search is for the cause of the first.
        alike: operators known to be correct.
        look: see `Look`.
        most_looks: the search ends after this number of looks.

    Complexity: looks: about log2 of the operators before the first of `differing`, and one more for each that cannot be
    looked at; besides, O(looks * (operators + edges)).
    """
    place = {name: number for number, name in enumerate(order)}
    good, dark, looks = set(alike), set[str](), 0
    bad = min(differing, key=place.__getitem__)
    while True:
        between = sorted(_between(graph, bad, good), key=place.__getitem__)
        seeable = [name for name in between if name not in dark]
        if not seeable or looks >= most_looks:
            return Differing(bad, tuple(between), looks, not seeable)
        cut = [name for name in _cut(graph, between, bad, seeable[len(seeable) // 2]) if name not in dark]
        seen = look(cut)
        looks += 1
        dark.update(name for name in cut if name not in seen)
        good.update(name for name in cut if seen.get(name))
        bad = min((name for name in cut if seen.get(name) is False), key=place.__getitem__, default=bad)


def _between(graph: ComputationGraph, bad: str, good: Collection[str]) -> set[str]:
    """Ancestors of `bad`, up to good operators."""
    found, waiting = set[str](), [bad]
    while waiting:
        for name in graph.predecessors[waiting.pop()]:
            if name not in found and name not in good:
                found.add(name)
                waiting.append(name)
    return found


def _cut(graph: ComputationGraph, between: Sequence[str], bad: str, middle: str) -> list[str]:
    """Operators up to `middle` whose results are read after it."""
    until = between.index(middle) + 1
    behind = {bad, *between[until:]}
    return [name for name in between[:until] if not behind.isdisjoint(graph.successors[name])]
