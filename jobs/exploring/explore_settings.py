"""The settings of `explore`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iosched.jobs.exploring.objectives import (
    DEFAULT_OBJECTIVE,
    DEFAULT_POPULATION,
    DEFAULT_SAMPLER,
    SAMPLER_NAMES,
    Constraint,
    Objective,
    device_of,
    is_scored,
    names_in,
    parse_constraints,
    parse_objectives,
)
from iosched.jobs.exploring.score import ScoreCommand, parse_command
from iosched.jobs.ranking.measures import DEFAULT_MEASURE, Measure
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.source import StrPath
from iosched.profiler.devices.resolve import check_name


@dataclass(frozen=True)
class ExploreSettings:
    """Settings of `explore`.

    Attributes:
        storage: the file of the study, which is created or continued.
        sampler: a name in `SAMPLER_NAMES`, or a class of the user's: "FILE.py:CLASS" or "MODULE:CLASS".
        trials: the number of trials of the study, over all calls.
        budget_s: the seconds of evaluation, over all calls, after which no trial begins; None for no limit.
        objectives: texts like "min:latency:cpu,max:accuracy".
        constraints: texts like "latency:cpu<=5000"; latencies are in microseconds.
        score_command: a program and its arguments, in which {model} and {params} are replaced; None for none.
        score_timeout_s: the seconds that it may take for one model; None for no limit.
        score_batch: the number of variants that go to the score command as one model.
        prunes: whether to end the score command if its intermediate score is worse than the median.
        top: the number of best variants to write.
        seed: the seed of all choices.
        population: the number of individuals that "evolution", "steady-evolution" and "nsga2" breed from.
        measure: measures of a variant: whole "models", only "stages", or "none".
        optimize: how schedules are searched; the device is that of an objective.
    """

    storage: StrPath
    sampler: str = DEFAULT_SAMPLER
    trials: int = 100
    budget_s: float | None = None
    objectives: tuple[str, ...] = (DEFAULT_OBJECTIVE,)
    constraints: tuple[str, ...] = ()
    score_command: str | None = None
    score_timeout_s: float | None = 3600.0
    score_batch: int = 1
    prunes: bool = False
    top: int = 5
    seed: int = 0
    population: int = DEFAULT_POPULATION
    measure: Measure = DEFAULT_MEASURE
    optimize: OptimizeSettings = field(default_factory=OptimizeSettings)


@dataclass(frozen=True)
class ParsedSettings:
    """The parsed settings.

    Attributes:
        devices: the devices whose latencies are requested, as named in objectives and constraints.
        score: the score command; None if none of its values is requested.
    """

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    devices: tuple[str, ...]
    score: ScoreCommand | None


def parse_settings(settings: ExploreSettings) -> ParsedSettings:
    """Parses the settings."""
    if settings.sampler not in SAMPLER_NAMES and ":" not in settings.sampler:
        known = f"{', '.join(SAMPLER_NAMES)}, FILE.py:CLASS and MODULE:CLASS"
        raise UsageError(f"unknown sampler {settings.sampler!r}: choose from {known}")
    if settings.trials < 1 or settings.top < 0 or settings.population < 2:
        raise UsageError("a study needs at least 1 trial, a top of at least 0 and a population of at least 2")
    objectives, constraints = parse_objectives(settings.objectives), parse_constraints(settings.constraints)
    if not objectives:
        raise UsageError(f"no objective: add one, such as {DEFAULT_OBJECTIVE}")
    names = names_in(objectives, constraints)
    devices = tuple(device for name in names if (device := device_of(name)) is not None)
    for device in devices:
        check_name(device)
    keys = tuple(name for name in names if is_scored(name))
    if settings.prunes and (len(objectives) > 1 or [each.name for each in objectives] != list(keys)):
        raise UsageError("pruning needs exactly one objective, from the score command: remove --prune or the others")
    return ParsedSettings(objectives, constraints, devices, _score_command(settings, keys))


def _score_command(settings: ExploreSettings, keys: Sequence[str]) -> ScoreCommand | None:
    if settings.score_batch < 1 or (settings.score_batch > 1 and settings.prunes):
        raise UsageError("--score-batch must be at least 1, and 1 with --prune")
    if settings.score_command is None:
        if keys:
            raise UsageError(f"nothing computes {keys[0]!r}: add a score command with --score-cmd")
        if settings.score_batch > 1:
            raise UsageError("--score-batch needs --score-cmd: add it, or remove --score-batch")
        return None
    command = parse_command(settings.score_command, settings.score_timeout_s, keys)
    if not keys:
        raise UsageError("no objective or constraint uses the output of --score-cmd: add one")
    return command
