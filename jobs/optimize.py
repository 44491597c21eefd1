"""The main job: search a schedule by measurement, compare it with what it has to beat, and decide what to ship."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import cast

from iosched.jobs.decision import Decision, decide
from iosched.jobs.fitting import fitted
from iosched.jobs.opening import opened
from iosched.jobs.pace import Pace
from iosched.jobs.paper import predicted_verdict
from iosched.jobs.progress import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.result import OptimizeResult, Verdict, document_of, result_of
from iosched.jobs.schedules import schedule_asked_for, unsearched
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel, OpenModelHere, Running, Way
from iosched.profiler.devices.resolve import check_name, resolve
from iosched.profiler.measuring.in_turn import Budget, Candidate, close_all
from iosched.profiler.measuring.interleave import compare, speedup_text
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.profiler.store.latencies import ModelLatencies
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import ReferenceSettings
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import Alternative
from iosched.scheduler.document_format import Shipped
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import NAMES

__all__ = ["OptimizeResult", "OptimizeSettings", "optimize"]

_HURRIED = Budget(rounds=LEAST_SAMPLES)
_NOTHING_TO_SCHEDULE = "its inputs have no fixed size or nothing is computed, so there is nothing to schedule"


def optimize(
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> OptimizeResult:
    """Finds the fastest way to run `model` here, or on a GPU that is not here, by a model of it.

    On the CPU, the schedule found is measured in turn with the sequential and the greedy schedule and with plain
    onnxruntime in its best setting; the fastest is shipped, so the result is never slower than plain onnxruntime beyond
    noise. On a GPU it is measured in turn with the sequential schedule in one CUDA graph.

    With `settings.schedule_from`, nothing is searched: that schedule is what is compared and shipped.

    Raises:
        UsageError: a setting is wrong.
        InvalidScheduleError: the schedule to take is one of another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there, or a GPU has not enough memory.
        ExecutionError: a kernel fails on a GPU.
        KeyboardInterrupt: `interrupt` was asked, and the best schedule known is not wanted.
    """
    if settings.strategy not in NAMES:
        raise UsageError(f"unknown strategy {settings.strategy!r}")
    check_name(settings.device)
    if settings.schedule_from is not None:
        settings = replace(settings, schedule_from=fitted(settings.schedule_from, model))
    device = resolve(settings.device, model)
    device.check(settings.opening)
    started = time.monotonic()
    with opened(device, model, settings.opening, settings.profile_db) as there:
        plain = None if there.here is None else there.here.plain
        pace = Pace(settings.budget_s, started, interrupt or Uninterrupted(), plain)
        return _Job(model, settings, there, observer or Silence(), pace).run()


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of `optimize`: what its steps share."""

    model: Model
    settings: OptimizeSettings
    opened: OpenModel
    observer: Observer
    pace: Pace

    def run(self) -> OptimizeResult:
        """Search, compare, decide."""
        here, interrupt = self.opened.here, self.pace.interrupt
        with interrupt.holding():
            found = self._searched()
            if interrupt.came:
                interrupt.ask()
            measured = None if here is None else _Comparison(self, here, found).verdict()
        verdict = measured or predicted_verdict(self.model, self.opened, self.settings.precision, found)
        document = document_of(self.model, self.settings, self.opened.device, found, verdict, here)
        cost = None if here is None else here.cost
        return result_of(document, found, verdict, cost, self.pace.seconds)

    def _searched(self) -> SearchResult:
        here = self.opened.here
        if here is not None and not here.is_schedulable:
            return unsearched(sequential(self.opened.graph))
        return schedule_asked_for(self.opened, self.settings, self.observer, self.pace.deadline)


class _StoppedError(Exception):
    """An interruption came between two rounds of comparing."""


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Whole models measured side by side: the schedule found, the baselines, and plain onnxruntime."""

    job: _Job
    here: OpenModelHere
    found: SearchResult

    def verdict(self) -> Verdict:
        """What ships, and how it compares with what there is without it."""
        here = self.here
        if not here.is_schedulable:
            return self._nothing_scheduled()
        measured, setting = self._measured()
        found_names = list(self._found_ways)
        plain = "sequential" if here.plain is None else "reference"
        decided = decide(measured, plain, [*found_names, *(["sequential"] if here.plain is not None else [])])
        found_name = decided.weighed if decided.weighed in found_names else found_names[0]
        return self._verdict(decided, found_name, measured, setting)

    def _nothing_scheduled(self) -> Verdict:
        """Plain onnxruntime ships."""
        running, plain = self.here.running(None, {}), self.here.plain
        return Verdict(
            shipped="reference",
            reason=_NOTHING_TO_SCHEDULE,
            schedule=self.here.units.expanded(self.found.schedule),
            proven=self.found.proven,
            alternatives=(),
            latency_us={},
            kernels_before=running.n_kernels,
            running=_with_setting(running, None if plain is None else plain.settings[0]),
        )

    def _verdict(
        self,
        decided: Decision,
        found_name: str,
        measured: Mapping[str, Measurement],
        setting: ReferenceSettings | None,
    ) -> Verdict:
        here, chosen = self.here, decided.chosen
        shipped = cast(Shipped, "iosched" if chosen in self._found_ways else chosen)
        labels = dict.fromkeys(self._found_ways, "iosched")
        in_file = found_name if chosen == "reference" else chosen
        running = here.running(None if chosen == "reference" else self._ways[chosen], measured)
        words = {
            **dict.fromkeys(labels, "the schedule found"),
            "sequential": here.wording.sequential,
            "reference": "plain onnxruntime",
        }
        n_rounds = min(len(each.samples_us) for each in measured.values())
        notes = (*self.job.pace.notes(n_rounds), *_rest_notes(measured, chosen, words), *running.notes)
        known = {name: measured[name] for name in ("sequential", "greedy", "reference") if name in measured}
        known = {"measured": measured[found_name], **known}
        return Verdict(
            shipped=shipped,
            reason=decided.reason(words),
            schedule=here.units.expanded(self._ways[in_file].schedule),
            proven=None if shipped == "sequential" else self.found.proven,
            alternatives=tuple(
                Alternative(
                    labels.get(name, name), here.units.expanded(self._ways[name].schedule), measured[name].median_us
                )
                for name in (found_name, "sequential", "greedy")
                if name != in_file and name in measured
            ),
            latency_us={name: each.median_us for name, each in known.items()},
            kernels_before=here.running(None, measured).n_kernels,
            running=_with_setting(replace(running, notes=notes), setting),
            ratio=decided.ratio(labels),
            rested_us={name: each.rested.median_us for name, each in known.items() if each.rested},
        )

    @cached_property
    def _found_ways(self) -> Mapping[str, Way]:
        return self.here.ways(self.found.schedule)

    @cached_property
    def _ways(self) -> Mapping[str, Way]:
        """All that is compared but plain onnxruntime."""
        graph = self.here.graph
        return {**self._found_ways, "sequential": Way(sequential(graph)), "greedy": Way(greedy(graph))}

    def _measured(self) -> tuple[Mapping[str, Measurement], ReferenceSettings | None]:
        """Latency of each way and of plain onnxruntime in a setting, from the database or measured in turn."""
        plain, pace = self.here.plain, self.job.pace
        ways = dict(self._ways)
        texts = {name: way.text for name, way in ways.items()}
        if plain is not None:
            texts["reference"] = "reference"
        known = self._known(texts)
        if known is not None:
            return known
        if pace.is_hurried and pace.left_s < pace.least_comparison_s(len(texts)):
            del ways["greedy"]
        # Schedules that are the same are measured once, so that a later run finds the latencies that this one had.
        twin = {texts[name]: name for name in reversed(tuple(ways))}
        setting, measured = self._measured_now({name: ways[name] for name in reversed(tuple(twin.values()))})
        found = {**measured, **{name: measured[twin[texts[name]]] for name in ways}}
        if self._is_thorough(measured):  # else a later run that has the time shall measure again
            self._keep({name: text for name, text in texts.items() if name in found}, found, setting)
        return found, setting

    def _known(self, texts: Mapping[str, str]) -> tuple[Mapping[str, Measurement], ReferenceSettings | None] | None:
        """An earlier comparison of the same ways, and plain onnxruntime's setting in it."""
        found = self._latencies.known(texts)
        plain = self.here.plain
        if found is None or plain is None:
            return None if found is None else (found, None)
        setting = {each.description: each for each in plain.settings}.get(self._latencies.setting(texts) or "")
        return None if setting is None else (found, setting)

    def _keep(
        self, texts: Mapping[str, str], measured: Mapping[str, Measurement], setting: ReferenceSettings | None
    ) -> None:
        self._latencies.keep(texts, measured, {} if setting is None else {"reference": setting.description})

    def _is_thorough(self, measured: Mapping[str, Measurement]) -> bool:
        pace = self.job.pace
        n_rounds = min(len(each.samples_us) for each in measured.values())
        return n_rounds >= self.here.budget.rounds or not (pace.is_hurried or pace.interrupt.accepted)

    def _measured_now(self, ways: Mapping[str, Way]) -> tuple[ReferenceSettings | None, Mapping[str, Measurement]]:
        inputs = random_inputs(self.job.model.graph.inputs)
        candidates: dict[str, Candidate] = {}
        setting = None
        try:
            if (plain := self.here.plain) is not None:
                setting = self._best_setting(inputs)
                candidates["reference"] = plain.ready(setting, inputs)
            for name, way in ways.items():
                candidates[name] = self.here.ready(way, inputs)
            return setting, self._in_turn(candidates)
        finally:
            close_all(candidates.values())

    def _best_setting(self, inputs: Arrays) -> ReferenceSettings:
        """The setting in which plain onnxruntime is fastest, where there is time to find it."""
        assert self.here.plain is not None
        return self.here.plain.best(inputs) if self.job.pace.can_choose_setting else self.here.plain.settings[0]

    def _in_turn(self, candidates: Mapping[str, Candidate]) -> Mapping[str, Measurement]:
        budget = self.job.pace.comparison(self.here.budget, len(candidates))
        try:
            return self.here.in_turn(candidates, budget, self._compared)
        except _StoppedError:
            self.job.pace.interrupt.ask()
            return self.here.in_turn(candidates, _HURRIED, self._compared)

    def _compared(self, done: int, total: int) -> None:
        if self.job.pace.interrupt.came:
            raise _StoppedError
        self.job.observer.progress(done, total, f"comparing with {self.here.wording.rival}")

    @cached_property
    def _latencies(self) -> ModelLatencies:
        cost = self.here.cost
        return ModelLatencies(self.job.model, cost.database, cost.device, self.job.settings.resume)


def _with_setting(running: Running, setting: ReferenceSettings | None) -> Running:
    """With plain onnxruntime's setting beside the rest of what the runtime is to be told."""
    if setting is None:
        return running
    return replace(running, runtime={**running.runtime, "reference": asdict(setting)})


def _rest_notes(measured: Mapping[str, Measurement], shipped: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """A word where what ships, being faster in a row, is slower after a rest."""
    ours, plain = (measured[name].rested if name in measured else None for name in (shipped, "reference"))
    found = None if ours is None or plain is None else compare(plain, ours)
    if found is None or not found.is_slower:
        return ()
    return (
        f"After a rest {words[shipped]} is {speedup_text(found)} as fast as plain onnxruntime: what runs seldom is"
        " served better by the model as it was given.",
    )
