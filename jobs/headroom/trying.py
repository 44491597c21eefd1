"""Tries changes of one stage on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from iosched.jobs.headroom.ladders import NOW, Ladders
from iosched.jobs.headroom.ratios import computed, in_turn_us, measured
from iosched.jobs.headroom.result import Change, Ratio
from iosched.jobs.headroom.search import climb
from iosched.models.enlarging.part import Part
from iosched.models.enlarging.trial import groups_in_trial, trial
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.cost import ComparesStretches, StageCosts
from iosched.profiler.devices.device import OpenModel
from iosched.profiler.devices.units import Units
from iosched.scheduler.schedule import Stage

Opener = Callable[[Model], OpenModel]
Amid = Callable[[], float | None]
"""Measures what a stage takes amid the model, in microseconds; None where that cannot be."""
_ITSELF = 2  # measurements: amid the model, and apart from it
LIKE = 1.25
"""A stage that takes so many times as long amid the model as apart from it, or the other way round, is not the same."""


@dataclass(eq=False)
class Allowance:
    """How many stages may still be measured.

    Attributes:
        left: so many.
        spent: and so many were.
    """

    left: int
    spent: int = 0

    def take(self, count: int, *, keep: int = 0) -> int:
        """Takes as many of `count` as are left, but for `keep`."""
        taken = max(min(count, self.left - keep), 0)
        self.left -= taken
        self.spent += taken
        return taken


def needed(ladders: Ladders) -> int:
    """How many measurements a stage takes at least: itself, the first change of each kind, the free ones once more."""
    return _ITSELF + 2 * len(ladders.ladders)


@dataclass(frozen=True)
class Tried:
    """What changes of a stage take.

    Attributes:
        now_us: what the stage takes without them, apart from the model.
        changes: those that could be tried; none where that is not what the stage takes amid the model.
    """

    now_us: float | None
    changes: tuple[Change, ...] = ()


def changes_of(
    ladders: Ladders, stage: Stage, block: int, opener: Opener, amid: Amid, allowance: Allowance
) -> Tried | None:
    """What was found for each kind of change.

    Args:
        ladders: what to try.
        stage: of operators of the model, as the device runs it.
        block: how many channels kernels compute at once.
        opener: opens a model of changed parts on the device.
        amid: asked where stages are measured. onnxruntime joins operators with others of other stages, which apart from
            the model are not there.
        allowance: what may be measured; computed ratios take nothing from it.

    Returns:
        None where the device does not run the stage's operators by themselves as it does amid the model.

    Raises:
        InvalidModelError: onnxruntime refuses the parts.
    """
    model = trial(ladders.parts, block)
    with closing(opener(model)) as opened:
        stages = _stages(model.graph, opened.units, ladders.parts, stage)
        if NOW not in stages:
            return None
        rungs = [[name for name in ladder.rungs if name in stages] for ladder in ladders.ladders]
        if opened.uncertainty is None:
            turns = _InTurn(opened.cost, stages, allowance)
            now_us, amid_us = turns.now_us(), amid()
            if not now_us or not amid_us or max(now_us / amid_us, amid_us / now_us) > LIKE:
                return Tried(now_us)
            found = climb(rungs, partial(turns.ratios, keep=len(rungs)), turns.ratios)
        else:
            known = opened.uncertainty
            found = climb(rungs, lambda names: computed(known, stages[NOW], _only(names, stages)), None)
            now_us = opened.cost.stage_latency_us(stages[NOW])
    changes = (
        Change(each.kind, each.operator, each.now, each.rungs[names[best.rung]], best.ratio, best.tried, each.readers)
        for each, names, best in zip(ladders.ladders, rungs, found, strict=True)
        if best is not None
    )
    return Tried(now_us, tuple(changes))


@dataclass(frozen=True, eq=False)
class _InTurn:
    """Measures stages of an open trial."""

    cost: StageCosts
    stages: Mapping[str, Stage]
    allowance: Allowance

    def now_us(self) -> float | None:
        self.allowance.take(_ITSELF)
        return in_turn_us(self.cost, self.stages[NOW])

    def ratios(self, names: Sequence[str], *, keep: int = 0) -> Mapping[str, Ratio]:
        allowed = names[: self.allowance.take(len(names), keep=keep)]
        if not allowed or not isinstance(self.cost, ComparesStretches):
            return {}
        return measured(self.cost, self.stages[NOW], _only(allowed, self.stages))


def _only(names: Sequence[str], stages: Mapping[str, Stage]) -> dict[str, Stage]:
    return {name: stages[name] for name in names}


def _stages(graph: ComputationGraph, units: Units, parts: Mapping[str, Part], stage: Stage) -> dict[str, Stage]:
    """For each part its stage in units of the device, where these are of this part and of one group alone."""
    found = {}
    for name, part in parts.items():
        groups = groups_in_trial(name, part.groups)
        if not _is_as_before(graph, name, part):
            continue
        in_units = tuple(tuple(dict.fromkeys(map(units.unit_of, group))) for group in groups)
        apart = [unit for group in in_units for unit in group]
        members = {member for unit in apart for member in units.members(unit)}
        if len(apart) == len(set(apart)) and members <= {operator for group in groups for operator in group}:
            division = stage.division if len(groups) == len(stage.groups) else None
            found[name] = Stage(stage.strategy, in_units, division=division)
    return found


def _is_as_before(graph: ComputationGraph, name: str, part: Part) -> bool:
    """Whether the trial has the part's operators, each of the nodes that it has in the model."""
    return all(
        (found := graph.by_name.get(f"{name}/{operator}")) is not None
        and found.nodes == tuple(f"{name}/{node}" for node in nodes)
        for operator, nodes in part.members.items()
    )
