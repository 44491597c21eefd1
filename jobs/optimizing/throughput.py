"""Finds the way to run a model with the highest throughput on all cores of a CPU.

The cores are divided into teams, which take different images or different requests (`scheduler/teams.py`). All
divisions are tried with schedules that need no search; a schedule is searched for the best divisions into teams of
several cores. The best result is then compared, interleaved, with plain onnxruntime and OpenVINO at their best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import cast

from iosched.jobs.decision import decide
from iosched.jobs.observer import Observer
from iosched.jobs.optimizing.comparison import OPENVINO, REFERENCE
from iosched.jobs.optimizing.verdict import Verdict, with_setting
from iosched.jobs.schedules import schedule_asked_for, schedule_by, unsearched
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import TimeBudget
from iosched.models.batch_independence import with_batch_size
from iosched.models.errors import DeviceError, MismatchError, UsageError
from iosched.models.model import Model
from iosched.profiler.baselines.onnxruntime import MANY_SESSIONS_NBYTES
from iosched.profiler.baselines.requests import open_in_teams, open_streams
from iosched.profiler.devices.measured_costs import MeasuredCosts
from iosched.profiler.devices.profiled_device import AttachedModel, TeamWays, Way
from iosched.profiler.measuring.interleaved_models import Budget, closing_all, measure_rates, rate_turn_seconds
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.runtime.compare import compare
from iosched.runtime.executor import Candidate
from iosched.runtime.faults import Faults
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.baselines import greedy, sequential, together
from iosched.scheduler.document import Alternative
from iosched.scheduler.document_format import Shipped
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import is_searched
from iosched.scheduler.teams import Teams, possible

_TRIED = Budget(rounds=2, max_seconds=40.0, least_rounds=1)
_COMPARED = Budget(rounds=15, max_seconds=60.0, least_rounds=LEAST_SAMPLES)

_WORTH_SEARCHING = 0.8
"""Teams of several cores get a search if they reach this part of the speed of the best teams."""

_MOST_SEARCHES = 2

_ONE_CORE = ReferenceSettings("sequential", 1)
"""Settings of each of several sessions of onnxruntime."""

_TRYING = 0.5
"""The part of the budget, without the comparison, for trying teams."""

CALLERS = "This throughput needs {requests} concurrent callers; a single one gets less."
_NOT_TRIED = "The time ran out after {tried} of {possible} divisions of the cores: use a larger --budget."
_ONE_WAY = "Plain onnxruntime was compared in one setting only because the time ran out: {way}."


@dataclass(frozen=True)
class TeamChoices:
    """The teams that are tried for a model.

    Attributes:
        refusal: why the batch cannot be divided; None if it can, or has one image.
        ours: the teams for our schedules.
        sessions: the teams for plain onnxruntime, in addition to one session on all cores.
    """

    refusal: str | None
    ours: Sequence[Teams]
    sessions: Sequence[Teams]


def team_choices(model: Model, lanes: int) -> TeamChoices:
    """The teams that are tried for a model on `lanes` cores.

    Teams of sessions have one core each; they take a request each, or divide the batch. There are none on a single
    core, or with weights too large for many copies.
    """
    refusal = None
    try:
        with_batch_size(model, 1)
    except UsageError as error:
        refusal = str(error)
    ours = possible(model.batch_size, lanes, divides=refusal is None)
    weights_nbytes = sum(array.nbytes for array in model.weights.values())
    if lanes == 1 or weights_nbytes > MANY_SESSIONS_NBYTES:
        return TeamChoices(refusal, ours, ())
    divided = [teams for teams in ours if teams.requests == 1 and teams.count == lanes]
    return TeamChoices(refusal, ours, (Teams(lanes, 1, model.batch_size), *divided))


@dataclass(frozen=True)
class _Choice:
    teams: Teams
    schedule: Schedule
    found: SearchResult | None = None
    cost: MeasuredCosts | None = None


@dataclass(frozen=True, eq=False)
class _ThroughputJob:
    attached: AttachedModel
    ways: TeamWays
    choices: TeamChoices
    model: Model
    settings: OptimizeSettings
    observer: Observer
    time_budget: TimeBudget
    inputs: Arrays
    faults: Faults
    left_out: list[str] = field(default_factory=list)

    def best(self) -> _Choice:
        """The fastest of our ways by a few samples each."""
        if self.settings.schedule_from is not None or not is_searched(self.settings.strategy):
            given = [self._asked_for(teams) for teams in self.affordable(1)]
            return given[self._ranked(given)[0][0]]
        choices = [
            _Choice(teams, make(self.model.graph)) for teams in self.affordable(2) for make in self._makers(teams)
        ]
        if self._trying_s < len(choices) * self.time_budget.trial_s:  # no time to try any
            return choices[0]
        order, rates = self._ranked(choices)
        slowest = rates[order[0]] / _WORTH_SEARCHING
        near = [
            choices[at].teams for at in order if rates[at] <= slowest and self._has_several_cores(choices[at].teams)
        ]
        to_search = list(dict.fromkeys(near))[:_MOST_SEARCHES]
        reserve_s = self.sessions_s + (1 + len(to_search)) * self.time_budget.trial_s
        if self.time_budget.search_left_s <= reserve_s:
            return choices[order[0]]
        searched = [
            self._asked_for(teams, reserve_s, 1 / (len(to_search) - number)) for number, teams in enumerate(to_search)
        ]
        finalists = [choices[order[0]], *searched]
        return finalists[self._ranked(finalists)[0][0]]

    def affordable(self, n_ways: int) -> Sequence[Teams]:
        """The teams for which there is time to try `n_ways` each; at least one.

        If time is short, teams that run their share of the images at once on the fewest cores come first.
        """
        choices, each_s = self.choices.ours, n_ways * self.time_budget.trial_s
        if self._trying_s >= len(choices) * each_s:
            return choices
        batch = self.model.batch_size
        likely = sorted(choices, key=lambda teams: (teams.images * teams.count < batch, self._has_several_cores(teams)))
        found = likely[: max(int(self._trying_s / each_s), 1)]
        self.left_out.append(_NOT_TRIED.format(tried=len(found), possible=len(choices)))
        return found

    @property
    def sessions_s(self) -> float:
        return (1 + len(self.choices.sessions)) * self.time_budget.trial_s if self.choices.sessions else 0.0

    @property
    def _trying_s(self) -> float:
        left_s = self.time_budget.search_left_s - self.sessions_s
        return _TRYING * max(left_s, 0.0) if self.time_budget.can_decide else 0.0

    def sessions(self, ours: Teams) -> tuple[Teams | None, ReferenceSettings]:
        """The fastest teams of plain onnxruntime (None: one session) and its setting.

        If time is short, its sessions are divided like our teams, if possible.
        """
        sessions, plain = self.choices.sessions, self.attached.baselines.onnxruntime
        assert plain is not None
        setting = plain.best(self.inputs) if self.time_budget.can_choose_setting else plain.settings[0]
        left_s = self.time_budget.search_left_s if self.time_budget.can_decide else 0.0
        if left_s < self.sessions_s / 2:  # a search that reserved all of it may end a little late
            alike = ((ours.requests, ours.count) == (teams.requests, teams.count) for teams in sessions)
            found = next((teams for teams, is_alike in zip(sessions, alike, strict=True) if is_alike), None)
            self.left_out.append(_ONE_WAY.format(way="one session over all cores" if found is None else found.text))
            return found, setting if found is None else _ONE_CORE
        openers: list[Callable[[], Candidate]] = [partial(plain.ready, setting, self.inputs)]
        openers += [partial(open_in_teams, self.model, teams, self.lanes, self.inputs) for teams in sessions]
        best = self._order(openers)[0][0]
        if best == 0:
            return None, setting
        return sessions[best - 1], _ONE_CORE

    def ready(self, choice: _Choice) -> Candidate:
        return self.ways.ready(choice.schedule, choice.teams, self.inputs)[0]

    def within(self, budget: Budget, share: float) -> Budget:
        return replace(budget, max_seconds=min(budget.max_seconds, share * self.time_budget.left_s))

    def progress(self, what: str) -> Callable[[int, int], None]:
        def show(done: int, total: int) -> None:
            self.time_budget.ask()
            self.observer.progress(done, total, what)

        return show

    @property
    def lanes(self) -> int:
        return self.attached.cost.lanes

    def _makers(self, teams: Teams) -> Sequence[Callable[..., Schedule]]:
        return (sequential, greedy) if self._has_several_cores(teams) else (sequential, together)

    def _has_several_cores(self, teams: Teams) -> bool:
        return teams.lanes(self.lanes) > 1

    def _asked_for(self, teams: Teams, reserve_s: float = 0.0, share: float = 1.0) -> _Choice:
        opened, settings = self.ways.opened(teams), self.settings
        deadline = partial(self.time_budget.deadline, reserve_s, share)
        if teams.count > 1 and settings.schedule_from is None:  # a session over all cores would use other teams' cores
            found = schedule_by(
                *(opened, settings.strategy, settings.pruning),
                exhaustive=settings.exhaustive,
                observer=self.observer,
                deadline=deadline(),
            )
        else:
            found = schedule_asked_for(opened, settings, self.observer, deadline)
        return _Choice(teams, opened.units.expanded(found.schedule), found, opened.cost)

    def _ranked(self, choices: Sequence[_Choice]) -> tuple[list[int], list[float]]:
        return self._order([partial(self.ready, choice) for choice in choices])

    def _order(self, openers: Sequence[Callable[[], Candidate]]) -> tuple[list[int], list[float]]:
        """Indices of ways by speed, and their microseconds per run; infinite for ways that fail."""
        if len(openers) == 1:
            return [0], [0.0]
        opened: dict[str, Candidate] = {}
        with closing_all(opened):
            for number, opener in enumerate(openers):
                with suppress(UsageError), self.faults.contained(f"division {number + 1} of the cores into teams"):
                    opened[str(number)] = opener()
            found = measure_rates(opened, self.within(_TRIED, 0.2), self.progress("trying teams"))
        rates = [found[name].min_us if (name := str(number)) in found else inf for number in range(len(openers))]
        return sorted(range(len(rates)), key=rates.__getitem__), rates


def best_throughput(
    attached: AttachedModel, model: Model, settings: OptimizeSettings, observer: Observer, time_budget: TimeBudget
) -> tuple[SearchResult, Verdict, MeasuredCosts]:
    """Finds the way with the highest throughput and decides what ships; also returns the search's cost model.

    Latencies in the verdict are microseconds from the end of one run of the model to that of the next.

    Raises:
        ExecutionError: a kernel fails.
        DeviceError: onnxruntime is not installed.
        MismatchError: teams compute other values than onnxruntime, and `settings.strict` is set.
        KeyboardInterrupt: the user interrupts and declines the best way known.
    """
    assert attached.teams is not None
    lanes = attached.cost.lanes
    time_budget = replace(
        time_budget, turn_s=lambda run_s: rate_turn_seconds(lanes * run_s)
    )  # in teams of one core each
    inputs = random_inputs(model.graph.inputs)
    choices, faults = team_choices(model, lanes), Faults(settings.strict)
    job = _ThroughputJob(attached, attached.teams, choices, model, settings, observer, time_budget, inputs, faults)
    choice = job.best()
    sessions, setting = job.sessions(choice.teams)
    measured, notes = _compared(job, choice, sessions, setting)
    verdict = _verdict(job, choice, measured, (sessions, setting), notes)
    return choice.found or unsearched(choice.schedule), verdict, choice.cost or attached.cost


def _compared(
    job: _ThroughputJob, choice: _Choice, sessions: Teams | None, setting: ReferenceSettings
) -> tuple[Mapping[str, Measurement], tuple[str, ...]]:
    """Measures all interleaved, without our own if its outputs differ."""
    attached, ways, plain = job.attached, job.ways, job.attached.baselines.onnxruntime
    assert plain is not None
    opened: dict[str, Candidate] = {}
    with closing_all(opened):
        if sessions is None:
            opened[REFERENCE] = plain.ready(setting, job.inputs)
        else:
            opened[REFERENCE] = open_in_teams(job.model, sessions, job.lanes, job.inputs)
        opened["iosched"], run = ways.ready(choice.schedule, choice.teams, job.inputs)
        with Reference(job.model, setting) as reference:
            check = compare(run(), reference.run(job.inputs))
        refusal = job.choices.refusal
        notes: tuple[str, ...] = () if refusal is None else (f"The batch is not divided: {refusal}.",)
        notes += (*job.left_out, *job.faults.notes)
        if not check.passed and job.settings.strict:
            raise MismatchError(f"outputs of teams differ from those of onnxruntime: {check.reasons[0]}")
        if not check.passed:  # never observed; the original model then ships
            opened.pop("iosched").close()
            notes += (
                f"Teams were not compared because their outputs differ from those of onnxruntime: {check.reasons[0]}.",
            )
        opened["sequential"] = attached.ready(Way(sequential(attached.graph)), job.inputs)
        notes += job.time_budget.library_notes
        if attached.baselines.openvino is not None and job.time_budget.has_time_for_library:
            try:
                attached.baselines.openvino.opened.close()  # raises unless it computes what onnxruntime computes
                opened[OPENVINO] = open_streams(job.model, job.lanes, job.inputs)
            except (DeviceError, MismatchError) as error:
                notes += (f"OpenVINO was not compared: {error}.",)
        budget = job.time_budget.comparison(_COMPARED, len(opened))
        measured = measure_rates(opened, budget, job.progress(f"comparing with {attached.measuring.wording.baseline}"))
        return measured, (*notes, *job.time_budget.notes(min(len(each.samples_us) for each in measured.values())))


def _n_kernels(job: _ThroughputJob, chosen: str, choice: _Choice, sessions: Teams | None) -> int | None:
    if chosen == OPENVINO:
        return None
    if chosen == "iosched":
        return job.ways.n_kernels(choice.schedule, choice.teams)
    found = job.attached.running(Way(sequential(job.attached.graph)) if chosen == "sequential" else None, {}).n_kernels
    if chosen == "sequential" or sessions is None or found is None:
        return found
    return found * sum(map(len, sessions.pieces(job.model.batch_size)))


def _verdict(
    job: _ThroughputJob,
    choice: _Choice,
    measured: Mapping[str, Measurement],
    plain: tuple[Teams | None, ReferenceSettings],
    notes: tuple[str, ...],
) -> Verdict:
    attached, (sessions, setting) = job.attached, plain
    ours = [name for name in ("iosched", "sequential") if name in measured]
    decided = decide(measured, REFERENCE, ours, [OPENVINO] if OPENVINO in measured else [])
    words = {
        "iosched": f"the schedule found ({choice.teams.text})",
        "sequential": attached.measuring.wording.sequential,
        REFERENCE: f"plain onnxruntime ({setting.description if sessions is None else sessions.text})",
        OPENVINO: "OpenVINO in its throughput settings",
    }
    teams = {
        "iosched": choice.teams,
        REFERENCE: sessions,
        OPENVINO: Teams(job.lanes, 1, job.model.batch_size),
    }
    running, shipped = attached.running(None, {}), teams.get(decided.chosen)
    n_kernels = _n_kernels(job, decided.chosen, choice, sessions)
    if shipped is not None and shipped.requests > 1:
        notes = (CALLERS.format(requests=shipped.requests), *notes)
    return Verdict(
        shipped=cast(Shipped, decided.chosen),
        reason=decided.reason(words),
        schedule=sequential(job.model.graph) if decided.chosen == "sequential" else choice.schedule,
        alternatives=(Alternative("sequential", sequential(job.model.graph), measured["sequential"].median_us),)
        if decided.chosen != "sequential"
        else (),
        latencies=measured,
        kernels_before=running.n_kernels,
        running=with_setting(replace(running, notes=(*notes, *running.notes), n_kernels=n_kernels), setting),
        ratio=decided.ratio(),
        teams=shipped,
    )
