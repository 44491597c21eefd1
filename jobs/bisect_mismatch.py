"""Finds the first operator of a model whose values differ from onnxruntime's, and the cause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, Literal

import numpy as np

from iosched.models.errors import IoschedError
from iosched.models.graph import ComputationGraph, quantized_operators
from iosched.models.model import Model
from iosched.models.probing import extracted_operators, probed
from iosched.runtime.compare import HALF_RTOL, Check, combine, compare
from iosched.runtime.device import Device
from iosched.runtime.faults import REPORT
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.strategies import runs_as_one

Cause = Literal["runtime", "model", "rounding"]

Values = Mapping[str, Any]
"""Computed values by tensor."""

FAILURES = (IoschedError, ValueError, KeyError)
"""Raised if a model cannot be run with more outputs: no plan passes, or a library has no such tensor."""

Look = Callable[[Sequence[str]], Mapping[str, bool]]
"""Maps operators to whether their results are correct; leaves out those that cannot be inspected."""

_SHOWN = 4
"""Maximum number of names in a list."""

_ADVICE = {
    "runtime": "From the same operator inputs, onnxruntime computes other values: iosched runs the operator wrongly. "
    "Until this is fixed, use plain onnxruntime, or try 'iosched optimize --strategy sequential'. " + REPORT,
    "model": "onnxruntime computes the same values from this file, but not from the original: weights, attributes or "
    "connections of the operator differ. Optimize the original again. If that does not help: " + REPORT,
    "rounding": "From the same operator inputs, onnxruntime computes the same values: no operator is wrong, small "
    "differences have accumulated. Check whether they affect the model's results, such as its accuracy.",
    None: "The operator could not be tested alone. " + REPORT,
}


@dataclass(frozen=True, eq=False)
class Original:
    """A model whose onnxruntime results are the reference for another one.

    Attributes:
        model: the reference model.
        inputs: the names of its inputs in the other model.
        prefix: the prefix of its tensors' names in the other model.
    """

    model: Model
    inputs: Mapping[str, str]
    prefix: str = ""

    def values(self, names: Sequence[str], inputs: Arrays) -> dict[str, Any]:
        """The values of the tensors that this model has, by their names in the other model; empty if it cannot run."""
        own = {name.removeprefix(self.prefix): name for name in names if name.startswith(self.prefix)}
        looked_into = probed(self.model, tuple(own))
        try:
            with Reference(looked_into) as reference:
                found = reference.run({name: inputs[called] for name, called in self.inputs.items()})
        except FAILURES:
            return {}
        return {own[name]: value for name, value in found.items() if name in own}


@dataclass(frozen=True, eq=False)
class MismatchCase:
    """A model whose outputs differ from onnxruntime's.

    Attributes:
        document: its schedule, in the names of its operators; None if it has none.
        device: runs it.
        inputs: the model's inputs.
        originals: the references: one model, or each member of a composed one.
        rtol: relative tolerance of floats, see `compare`.
        threads: the number of CPU cores; None for all that may be used.
    """

    model: Model
    document: ScheduleDocument | None
    device: Device
    inputs: Arrays
    originals: Sequence[Original]
    rtol: float
    threads: int | None = None

    def computed(self, tensors: Sequence[str]) -> Values:
        """The outputs of the model on the device, and these tensors if it has them.

        Compiles the model again, so that it also returns the tensors.
        """
        looked_into = probed(self.model, tensors)
        with closing(self.device.executor(looked_into, self.document, self.threads)) as executor:
            return executor.run(self.inputs)

    def expected(self, tensors: Sequence[str]) -> Values:
        """onnxruntime's values of these tensors, without those that no original has."""
        found: dict[str, Any] = {}
        for original in self.originals:
            found |= original.values(tensors, self.inputs)
        return found

    @cached_property
    def rtol_between(self) -> float:
        """Tolerance of intermediate floats; those that represent whole numbers may be off by one step.

        A library no longer fuses operators whose results are requested, so rounding differs.
        """
        return max(self.rtol, HALF_RTOL) if quantized_operators(self.model.graph) else self.rtol

    def compared(self, computed: Values, expected: Values) -> dict[str, Check]:
        """A check of each tensor that both have: outputs of the model by its tolerance, others by `rtol_between`."""
        returned = self.model.graph.outputs
        rtol = {name: self.rtol if name in returned else self.rtol_between for name in expected if name in computed}
        return {name: compare({name: computed[name]}, {name: expected[name]}, rtol=rtol[name]) for name in rtol}

    def alone(self, model: Model, operators: Sequence[str], inputs: Values, outputs: Sequence[str]) -> Values | None:
        """onnxruntime's results of only these operators of `model` from their inputs; None if it cannot run them."""
        if any(name not in model.graph.by_name for name in operators):
            return None
        try:
            part = extracted_operators(model, operators, outputs)
            with Reference(part) as reference:
                return reference.run({spec.name: np.asarray(inputs[spec.name]) for spec in part.graph.inputs})
        except FAILURES:
            return None


@dataclass(frozen=True)
class SchedulePosition:
    """The position of an operator in a schedule.

    Attributes:
        stage: the number of its stage, counted from 0 over all blocks.
        group: the number of its group in the stage, from 0.
        as_one_with: the operators that run as one with it.
    """

    block: int
    stage: int
    group: int
    strategy: str
    as_one_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstDifference:
    """The first operator whose results exceed the tolerance while its inputs do not.

    Attributes:
        unseen: operators right before it that could not be inspected separately: it may be one of them.
        place: its position in the schedule; None if there is none.
        max_abs: the largest difference of its results from onnxruntime's; None if they cannot be compared, for example
            with NaN.
        max_rel: the same relative to the scale of the tensor.
        inputs_max_rel: the same for all its inputs; None if they could not be inspected.
        reason: the difference, for display.
        cause: from onnxruntime's results for the same operator inputs. "runtime": they differ, so the operator runs
            wrongly; "model": only those of the original's operator differ, so the file differs; "rounding": they are
            equal, so small differences accumulated. None if that could not be tested.
        vanishes: whether outputs were correct in an inspecting run, for example if memory is overwritten.
        is_complete: whether the search finished.
        looks: the number of inspecting runs.
    """

    operator: str
    type: str
    unseen: tuple[str, ...]
    place: SchedulePosition | None
    max_abs: float | None
    max_rel: float | None
    inputs_max_rel: float | None
    reason: str
    cause: Cause | None
    vanishes: bool
    is_complete: bool
    looks: int


def position_of(schedule: Schedule | None, operator: str) -> SchedulePosition | None:
    """The position of `operator` in `schedule`, if any."""
    number = 0
    for block in () if schedule is None else schedule.blocks:
        for stage in block.stages:
            for group, names in enumerate(stage.groups):
                if operator in names:
                    others = tuple(name for name in stage.operators if name != operator)
                    return SchedulePosition(
                        block.index, number, group, stage.strategy.value, others if runs_as_one(stage) else ()
                    )
            number += 1
    return None


def first_difference(case: MismatchCase) -> FirstDifference | None:
    """The first operator that differs on the way to the first output that does.

    None if no output of an operator differs when the loaded model runs again.

    Complexity: about log2(operators) compilations and runs of the model, on the device and on onnxruntime, each with a
    few more tensors among its outputs.
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
        """The error of these operators' inputs, and the cause by comparison with onnxruntime on the same inputs."""
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


@dataclass(frozen=True)
class Differing:
    """An operator that differs although its inputs do not.

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
        order: all operators in execution order, which must be topological.
        differing: operators known to differ, at least one; the search is for the cause of the first.
        alike: operators known to be correct.
        look: see `Look`.
        most_looks: the search ends after this number of looks.

    Complexity: about log2(operators before the first of `differing`) looks, plus one for each operator that cannot be
    inspected; the rest takes O(looks * (operators + edges)).
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
    after = {bad, *between[until:]}
    return [name for name in between[:until] if not after.isdisjoint(graph.successors[name])]


def sentence(found: FirstDifference) -> str:
    """One sentence that names the operator and says how far off it is."""
    which = f"the first operator that differs is {found.type} {found.operator!r}{_where(found.place)}"
    if found.unseen:
        which += f", or one before it that cannot be inspected separately ({_names(found.unseen)})"
    read = "" if found.inputs_max_rel is None else f"; its inputs are off by {found.inputs_max_rel:.3g} of their scale"
    return f"{which}: {found.reason.replace('output', 'its result', 1)}{read}"


def lines(found: FirstDifference | None) -> tuple[str, ...]:
    """The report on a difference, one or two sentences per line; `found` is None if no operator was found."""
    if found is None:
        return ("In another run the outputs were correct, which suggests a race between threads. " + REPORT,)
    text = sentence(found)
    said = [f"{text[0].upper()}{text[1:]}."]
    if not found.is_complete:
        said.append(f"The search stopped after {found.looks} runs.")
    if found.vanishes:
        said.append(
            "The difference disappears when intermediate tensors are kept, which suggests a faulty fused kernel or "
            "memory that is reused too early. " + REPORT
        )
    elif found.is_complete:
        said.append(_ADVICE[found.cause])
    return tuple(said)


def mismatch_text(reasons: Sequence[str], found: FirstDifference | None) -> str:
    """The error message for differing outputs: which ones differ, in two lines, then the first differing operator."""
    few = list(reasons) if len(reasons) <= 1 else [f"{reasons[0]}; and {len(reasons) - 1} more"]
    return "\n".join(["outputs differ from onnxruntime's:", *few, *lines(found)])


def _where(place: SchedulePosition | None) -> str:
    if place is None:
        return ""
    as_one = f", run as one with {_names(place.as_one_with)}" if place.as_one_with else ""
    return f" (stage {place.stage + 1}, group {place.group + 1}{as_one})"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
