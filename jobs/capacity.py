"""The job `explain --capacity`: what stages of a schedule leave idle, and what could be added to them for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iosched.jobs.explain import find_operator
from iosched.jobs.headroom.idle import spare_of
from iosched.jobs.headroom.ladders import can_grow, ladders_of
from iosched.jobs.headroom.ratios import in_turn_us
from iosched.jobs.headroom.result import Capacity, StageCapacity
from iosched.jobs.headroom.trying import Allowance, Tried, changes_of, needed
from iosched.jobs.opening import of_a_team, opened
from iosched.models.batching.sample import weightless
from iosched.models.enlarging.part import part_of
from iosched.models.images import with_images
from iosched.models.model import Model
from iosched.profiler.devices.cost import ComparesStretches
from iosched.profiler.devices.device import OpenModel, OpenModelHere, OpensParts
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import recorded
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.transfer import fitted

MEASUREMENTS = 50
"""How many stages are measured by default, changed ones included; this takes about a minute."""

MOST_STAGES = 64
"""In so many stages changes are tried, those first that leave most idle."""

_SESSION = (
    "it runs as one session of onnxruntime, whose latency is not known as well as one of its operators changes it"
)
_NOTHING = "it has no convolution and no product whose weights could grow"
_ANOTHER = "apart from the model its operators are not computed as they are amid it"
_NOT_ALLOWED = "not tried: it would take more measurements than are allowed"
_OTHERS_FIRST = f"not tried: the {MOST_STAGES} stages that leave most idle were"
_OTHER_STAGE = "not asked for"
_ATTACHED = (
    "On a GPU that is attached, changed stages are not measured. Plan for it by its name with --device on a machine"
    " without it: then they are computed."
)


def capacity(
    model: Model,
    document: ScheduleDocument,
    operator: str | None = None,
    *,
    measurements: int = MEASUREMENTS,
    profile_db: Path | None = None,
) -> Capacity:
    """What the stages of a schedule leave idle, and what could be added to them at no latency.

    On a CPU changed stages are measured in turn with the stage as it is; for a GPU that is not attached both are
    computed, and nothing that was measured elsewhere is used. Each stage counts alone: what reads a wider operator in a
    later stage has more to do there, which is not counted.

    Args:
        model: the model of the schedule.
        document: the schedule of this model, or of another one of the same structure.
        operator: if given, changes are tried in its stage alone.
        measurements: how many stages may be measured, changed ones included.
        profile_db: the profile database; by default the user's own.

    Raises:
        UsageError: there is no such operator; the text names similar ones.
        InvalidScheduleError: the schedule was made for another structure.
        DeviceError: the device of the schedule is not attached, or there is no specification of it.
    """
    document = fitted(document, model)
    wanted = None if operator is None else find_operator(model.graph, operator).name
    device, settings = recorded(document)
    if device.cost_kind == "analytic":
        settings = replace(settings, resume=False)
    with opened(device, model, settings, profile_db) as whole:
        open_model, teams = of_a_team(whole, document)
        here, allowance = open_model.here, Allowance(measurements)
        why = None if here is None or _measures_changes(here) else _ATTACHED
        stages: tuple[StageCapacity, ...] = ()
        if why is None:
            its_model = model if teams is None else with_images(model, teams.images)
            job = _Job(open_model, settings, weightless(its_model) if here is None else its_model, allowance)
            stages = job.tried(job.idle(document.schedule, wanted), wanted)
        return Capacity(
            document=document,
            device_name=device.name,
            cost=device.cost_kind,
            lanes=None if here is None else here.cost.lanes,
            teams=teams,
            channel_block=open_model.channel_block,
            stages=stages,
            measurements=allowance.spent,
            why=why,
        )


def _measures_changes(here: OpenModelHere) -> bool:
    return isinstance(here, OpensParts) and isinstance(here.cost, ComparesStretches)


@dataclass(frozen=True, eq=False)
class _Job:
    """A model that is open on the device of its schedule.

    Attributes:
        open_model: the model there, as one team runs it if several do.
        settings: those that it was opened with.
        model: the same model; without its weights where they are not needed.
        allowance: what may be measured.
    """

    open_model: OpenModel
    settings: OpenSettings
    model: Model
    allowance: Allowance

    def idle(self, schedule: Schedule, operator: str | None) -> tuple[StageCapacity, ...]:
        """All stages, and what they leave idle; on what may be measured they leave half for changes.

        Those in which changes can be tried come first.
        """
        in_units = self.open_model.units.scheduled(schedule)
        places = [(block.index, number) for block in in_units.blocks for number in range(len(block.stages))]
        half = Allowance(self.allowance.left // 2)
        stages = tuple(self.open_model.units.expanded(in_units).stages)
        first = {place for place, stage in enumerate(stages) if self._can_be_tried(stage, operator)}
        spare = spare_of(self.open_model, list(in_units.stages), half, first)
        self.allowance.take(half.spent)
        return tuple(
            StageCapacity(*place, stage, *each) for place, stage, each in zip(places, stages, spare, strict=True)
        )

    def tried(self, stages: Sequence[StageCapacity], operator: str | None) -> tuple[StageCapacity, ...]:
        """The stages with what changes of them take; those that leave most idle are tried first."""
        found = list(stages)
        order = sorted(range(len(found)), key=lambda place: -found[place].idle_us)
        open_ones = MOST_STAGES
        for place in order:
            each = found[place]
            if operator is not None and operator not in each.stage.operators:
                found[place] = replace(each, why=_OTHER_STAGE)
            elif open_ones:
                found[place] = self._of(each)
                open_ones -= found[place].why is None
            else:
                found[place] = replace(each, why=_OTHERS_FIRST)
        return tuple(found)

    def _can_be_tried(self, stage: Stage, operator: str | None) -> bool:
        if stage.strategy is Strategy.SESSION or operator not in (None, *stage.operators):
            return False
        part = part_of(self.model, stage.groups)
        return any(can_grow(part, name) for name in stage.operators)

    def _of(self, capacity: StageCapacity) -> StageCapacity:
        stage, block = capacity.stage, self.open_model.channel_block
        if stage.strategy is Strategy.SESSION:
            return replace(capacity, why=_SESSION)
        here = self.open_model.here
        part = part_of(self.model, stage.groups)
        ladders = ladders_of(self.model.graph, stage, part, block, is_run=here is not None)
        if not ladders.ladders:
            return replace(capacity, why=_NOTHING)
        if here is not None and self.allowance.left < needed(ladders):
            return replace(capacity, why=_NOT_ALLOWED)
        amid = partial(in_turn_us, self.open_model.cost, self._in_units(stage))
        tried = changes_of(ladders, stage, block, self._opened, amid, self.allowance) or Tried(None)
        why = None if tried.changes else _ANOTHER
        return replace(capacity, changes=tried.changes, apart_us=tried.now_us, why=why)

    def _in_units(self, stage: Stage) -> Stage:
        (found,) = self.open_model.units.scheduled(Schedule((Block(0, (stage,)),))).stages
        return found

    def _opened(self, parts: Model) -> OpenModel:
        here = self.open_model.here
        if isinstance(here, OpensParts):
            return here.amid(parts)
        return self.open_model.device.open(parts, self.settings, None)
