"""Finds the way to run a model with the most images a second, on all cores of a CPU.

The cores are divided into teams, which take different images or different requests (`scheduler/teams.py`). All ways to
divide them are tried with schedules that need no search; for the best of those whose teams have several cores a
schedule is searched. What is best then is compared anew, in turn, with plain onnxruntime and OpenVINO at their best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import cast

from iosched.jobs.comparison import OPENVINO, REFERENCE
from iosched.jobs.decision import decide
from iosched.jobs.pace import Pace
from iosched.jobs.progress import Observer
from iosched.jobs.schedules import schedule_asked_for, schedule_by, unsearched
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.verdict import Verdict, with_setting
from iosched.models.errors import DeviceError, MismatchError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import OpenModelHere, TeamWays, Way
from iosched.profiler.measuring.in_turn import Budget, Candidate, close_all
from iosched.profiler.measuring.rate import measure_rates
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.runtime.compare import compare
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.baselines import greedy, sequential, together
from iosched.scheduler.document import Alternative
from iosched.scheduler.document_format import Shipped
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategy_names import is_searched
from iosched.scheduler.teams import Teams

_TRIED = Budget(rounds=2, max_seconds=40.0, least_rounds=1)
_COMPARED = Budget(rounds=15, max_seconds=60.0, least_rounds=LEAST_SAMPLES)

_WORTH_SEARCHING = 0.8
"""Teams of several cores get a search where they are at least so fast beside the best teams without one."""

_MOST_SEARCHES = 2


@dataclass(frozen=True)
class _Choice:
    """A way to run the model: a schedule of operators for each team, and the search that found it."""

    teams: Teams
    schedule: Schedule
    found: SearchResult | None = None
    cost: MeasuredCosts | None = None


@dataclass(frozen=True, eq=False)
class _Job:
    here: OpenModelHere
    ways: TeamWays
    model: Model
    settings: OptimizeSettings
    observer: Observer
    pace: Pace
    inputs: Arrays

    def best(self) -> _Choice:
        """The best of our ways by a few samples each, so it has to be compared anew."""
        if self.settings.schedule_from is not None or not is_searched(self.settings.strategy):
            given = [self._asked_for(teams) for teams in self.ways.choices]
            return given[self._ranked(given)[0][0]]
        choices = [
            _Choice(teams, make(self.model.graph)) for teams in self.ways.choices for make in self._makers(teams)
        ]
        order, rates = self._ranked(choices)
        slowest = rates[order[0]] / _WORTH_SEARCHING
        near = [
            choices[at].teams for at in order if rates[at] <= slowest and self._has_several_cores(choices[at].teams)
        ]
        searched = [self._asked_for(teams) for teams in list(dict.fromkeys(near))[:_MOST_SEARCHES]]
        finalists = [choices[order[0]], *searched]
        return finalists[self._ranked(finalists)[0][0]]

    def sessions(self) -> tuple[Teams | None, ReferenceSettings]:
        """How plain onnxruntime is fastest: with which teams, or with one session for all cores, and its setting."""
        assert self.here.plain is not None
        setting = self.here.plain.best(self.inputs)
        openers: list[Callable[[], Candidate]] = [partial(self.here.plain.ready, setting, self.inputs)]
        openers += [partial(self.ways.ready_sessions, teams, self.inputs) for teams in self.ways.sessions]
        best = self._order(openers)[0][0]
        if best == 0:
            return None, setting
        return self.ways.sessions[best - 1], ReferenceSettings("sequential", 1)

    def ready(self, choice: _Choice) -> Candidate:
        """Ready to be timed."""
        return self.ways.ready(choice.schedule, choice.teams, self.inputs)[0]

    def within(self, budget: Budget, share: float) -> Budget:
        """`budget`, or less where a share of what is left of the user's budget is less."""
        return replace(budget, max_seconds=min(budget.max_seconds, share * self.pace.left_s))

    def progress(self, what: str) -> Callable[[int, int], None]:
        """An observer of rounds, which asks the user about an interruption that came in one."""

        def show(done: int, total: int) -> None:
            if self.pace.interrupt.came:
                self.pace.interrupt.ask()
            self.observer.progress(done, total, what)

        return show

    @property
    def lanes(self) -> int:
        """How many cores there are."""
        return int(self.here.running(None, {}).runtime["lanes"])

    def _makers(self, teams: Teams) -> Sequence[Callable[..., Schedule]]:
        return (sequential, greedy) if self._has_several_cores(teams) else (sequential, together)

    def _has_several_cores(self, teams: Teams) -> bool:
        return teams.lanes(self.lanes) > 1

    def _asked_for(self, teams: Teams) -> _Choice:
        """The schedule that the settings ask for, for a team."""
        opened, settings = self.ways.opened(teams), self.settings
        if teams.count > 1 and settings.schedule_from is None:  # a session over all cores would have those of others
            found = schedule_by(
                *(opened, settings.strategy, settings.pruning),
                exhaustive=settings.exhaustive,
                observer=self.observer,
                deadline=self.pace.deadline(),
            )
        else:
            found = schedule_asked_for(opened, settings, self.observer, self.pace.deadline)
        return _Choice(teams, opened.units.expanded(found.schedule), found, opened.cost)

    def _ranked(self, choices: Sequence[_Choice]) -> tuple[list[int], list[float]]:
        return self._order([partial(self.ready, choice) for choice in choices])

    def _order(self, openers: Sequence[Callable[[], Candidate]]) -> tuple[list[int], list[float]]:
        """The places of ways in the order of their speed, and what a run of each takes in microseconds.

        A way that needs a model for a number of images that it cannot be made for takes for ever.
        """
        if len(openers) == 1:
            return [0], [0.0]
        opened: dict[str, Candidate] = {}
        try:
            for number, opener in enumerate(openers):
                with suppress(UsageError):
                    opened[str(number)] = opener()
            found = measure_rates(opened, self.within(_TRIED, 0.2), self.progress("trying teams"))
        finally:
            close_all(opened.values())
        rates = [found[name].min_us if (name := str(number)) in found else inf for number in range(len(openers))]
        return sorted(range(len(rates)), key=rates.__getitem__), rates


def best_throughput(
    here: OpenModelHere, model: Model, settings: OptimizeSettings, observer: Observer, pace: Pace
) -> tuple[SearchResult, Verdict, MeasuredCosts]:
    """Finds the way with the most images a second, and decides what ships; also returns what the search measured.

    Latencies in the verdict are microseconds from the end of one run of the model to that of the next.

    Raises:
        ExecutionError: a kernel fails.
        DeviceError: onnxruntime is not installed.
        KeyboardInterrupt: the user interrupts, and does not want the best way known.
    """
    assert here.teams is not None
    job = _Job(here, here.teams, model, settings, observer, pace, random_inputs(model.graph.inputs))
    choice = job.best()
    sessions, setting = job.sessions()
    measured, notes = _compared(job, choice, sessions, setting)
    verdict = _verdict(job, choice, measured, (sessions, setting), notes)
    return choice.found or unsearched(choice.schedule), verdict, choice.cost or here.cost


def _compared(
    job: _Job, choice: _Choice, sessions: Teams | None, setting: ReferenceSettings
) -> tuple[Mapping[str, Measurement], tuple[str, ...]]:
    """All that is compared, measured in turn; without our own if it computes something else, which a sentence says."""
    here, ways, plain = job.here, job.ways, job.here.plain
    assert plain is not None
    opened: dict[str, Candidate] = {}
    try:
        if sessions is None:
            opened[REFERENCE] = plain.ready(setting, job.inputs)
        else:
            opened[REFERENCE] = ways.ready_sessions(sessions, job.inputs)
        opened["iosched"], run = ways.ready(choice.schedule, choice.teams, job.inputs)
        with Reference(job.model, setting) as reference:
            check = compare(run(), reference.run(job.inputs))
        notes: tuple[str, ...] = () if ways.refusal is None else (f"The batch is not divided: {ways.refusal}.",)
        if not check.passed:  # never seen; the model is then served as it was
            opened.pop("iosched").close()
            notes += (f"Teams compute something else than onnxruntime, so they were not compared: {check.reasons[0]}.",)
        opened["sequential"] = here.ready(Way(sequential(here.graph)), job.inputs)
        if here.openvino is not None:
            try:
                here.openvino.opened.close()  # raises unless it computes what onnxruntime computes
                opened[OPENVINO] = ways.ready_openvino(job.inputs)
            except (DeviceError, MismatchError) as error:
                notes += (f"OpenVINO was not compared: {error}.",)
        return measure_rates(
            opened, job.within(_COMPARED, 1.0), job.progress(f"comparing with {here.wording.rival}")
        ), notes
    finally:
        close_all(opened.values())


def _n_kernels(job: _Job, chosen: str, choice: _Choice, sessions: Teams | None) -> int | None:
    """How many kernels one run of the model launches in the way that was chosen; None where OpenVINO does."""
    if chosen == OPENVINO:
        return None
    if chosen == "iosched":
        return job.ways.n_kernels(choice.schedule, choice.teams)
    found = job.here.running(Way(sequential(job.here.graph)) if chosen == "sequential" else None, {}).n_kernels
    if chosen == "sequential" or sessions is None or found is None:
        return found
    return found * sum(map(len, sessions.pieces(job.model.batch_size)))


def _verdict(
    job: _Job,
    choice: _Choice,
    measured: Mapping[str, Measurement],
    plain: tuple[Teams | None, ReferenceSettings],
    notes: tuple[str, ...],
) -> Verdict:
    here, (sessions, setting) = job.here, plain
    ours = [name for name in ("iosched", "sequential") if name in measured]
    decided = decide(measured, REFERENCE, ours, [OPENVINO] if OPENVINO in measured else [])
    words = {
        "iosched": f"the schedule found ({choice.teams.text})",
        "sequential": here.wording.sequential,
        REFERENCE: f"plain onnxruntime ({setting.description if sessions is None else sessions.text})",
        OPENVINO: "OpenVINO with its settings for throughput",
    }
    teams = {
        "iosched": choice.teams,
        REFERENCE: sessions,
        OPENVINO: Teams(job.lanes, 1, job.model.batch_size),
    }
    running, shipped = here.running(None, {}), teams.get(decided.chosen)
    n_kernels = _n_kernels(job, decided.chosen, choice, sessions)
    if shipped is not None and shipped.requests > 1:
        callers = f"It takes {shipped.requests} callers at a time to get so many images a second; one alone gets fewer."
        notes = (callers, *notes)
    return Verdict(
        shipped=cast(Shipped, decided.chosen),
        reason=decided.reason(words),
        schedule=sequential(job.model.graph) if decided.chosen == "sequential" else choice.schedule,
        proven=None,
        alternatives=(Alternative("sequential", sequential(job.model.graph), measured["sequential"].median_us),)
        if decided.chosen != "sequential"
        else (),
        latency_us={{"iosched": "measured"}.get(name, name): each.median_us for name, each in measured.items()},
        kernels_before=running.n_kernels,
        running=with_setting(replace(running, notes=(*notes, *running.notes), n_kernels=n_kernels), setting),
        ratio=decided.ratio(),
        teams=shipped,
    )
