"""Compares ways to run a model by measuring them in turn: the schedule found, the baselines, plain onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.jobs.decision import Decision, decide, fastest
from iosched.jobs.interrupt import compared_in_turn
from iosched.jobs.pace import Pace
from iosched.jobs.progress import Observer
from iosched.models.errors import DeviceError, MismatchError
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.devices.ways import Way
from iosched.profiler.measuring.in_turn import closing_all, interference_notes
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.peers.openvino import PlainOpenvino
from iosched.profiler.store.latencies import ModelLatencies
from iosched.runtime.executor import Candidate
from iosched.runtime.faults import Faults
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import ReferenceSettings
from iosched.scheduler.baselines import greedy
from iosched.scheduler.divided import divided
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategy_names import ONE_SESSION

REFERENCE = "reference"
"""The name of plain onnxruntime among the ways that are compared."""

OPENVINO = "openvino"
"""The name of OpenVINO, without a schedule, among the ways that are compared."""

_WORDS = "the whole model by the schedule {!r}"
"""What a way is called for people, by its name."""

_OPTIONAL = ("greedy", ONE_SESSION)
"""The names of what is left out where time is short."""


_Measured = tuple[Mapping[str, Measurement], ReferenceSettings | None]
"""Latencies by name, and the setting of plain onnxruntime, if it is among them."""


@dataclass(frozen=True)
class Compared:
    """The ways that were compared, and their latencies.

    Attributes:
        found: the names of the ways to run the schedule that was found, the preferred one first.
        ways: all ways to run schedules by name, with "sequential" and "greedy" among them. Where a device has several
            ways to run one operator after another, "sequential" is the fastest of them.
        measured: the latencies by name, from one comparison; "greedy" is missing where the budget left no time for it.
        setting: the setting of plain onnxruntime; None if it was not compared.
        notes: sentences that a user should read about what was not compared.
    """

    found: tuple[str, ...]
    ways: Mapping[str, Way]
    measured: Mapping[str, Measurement]
    setting: ReferenceSettings | None
    notes: tuple[str, ...] = ()

    def decision(self, others: Sequence[str] = (OPENVINO,)) -> Decision:
        """Which of them ships: one of ours, plain onnxruntime where that was compared, or one of `others`."""
        has_reference = REFERENCE in self.measured
        ours = (*self.found, "sequential") if has_reference else self.found
        plain = REFERENCE if has_reference else "sequential"
        return decide(self.measured, plain, ours, [name for name in others if name in self.measured])


def compare_models(
    latencies: ModelLatencies,
    here: OpenModelHere,
    searched: SearchResult,
    pace: Pace,
    observer: Observer,
    faults: Faults,
) -> Compared:
    """Compares the ways to run the schedule that was found with the baselines and plain onnxruntime.

    Args:
        latencies: earlier comparisons of the model on this device.
        here: the model, open on the device.
        searched: the schedule that was found, in the device's units.
        pace: how much time there is.
        observer: is shown how many rounds are done.
        faults: of ways that fail, which are left out.

    Raises:
        DeviceError: the device cannot run one of them, for example because its memory is too small.
        The fault of a way: no way is left to run the schedule that was found, or one operator after another.
        KeyboardInterrupt: the user interrupts the comparison, and does not want the best schedule known.
    """
    found = here.ways(searched.schedule)
    in_turn = here.one_after_another()
    ways = {**found, **in_turn, "greedy": Way(divided(greedy(here.graph), here.cost))}

    def compared(measured: Mapping[str, Measurement]) -> Compared:
        best = fastest(measured, [name for name in in_turn if name in measured])
        names = tuple(name for name in found if name in measured)
        return Compared(names, {**ways, "sequential": ways[best]}, {**measured, "sequential": measured[best]}, None)

    def is_decided(measured: Mapping[str, Measurement]) -> bool:
        return has_both(measured) and compared(measured).decision().is_decided

    def has_both(measured: Mapping[str, Measurement]) -> bool:
        return not (measured.keys().isdisjoint(found) or measured.keys().isdisjoint(in_turn))

    comparison = _Comparison(latencies, here, pace, observer, faults, is_decided)
    known = None if here.baselines.openvino is None else comparison.known(ways, here.baselines.openvino)
    second, notes = (None, ()) if known else _openvino(here, pace)
    measured, setting = known or comparison.of(ways, second)
    if not has_both(measured):
        raise faults.first
    notes = (*interference_notes(measured), *notes, *faults.notes)
    return replace(compared(measured), setting=setting, notes=notes)


def compare_libraries(
    latencies: ModelLatencies, here: OpenModelHere, openvino: PlainOpenvino, pace: Pace, observer: Observer
) -> _Measured:
    """The latencies of plain onnxruntime and OpenVINO, and onnxruntime's setting; raises as `compare_models` does."""

    def is_decided(measured: Mapping[str, Measurement]) -> bool:
        found = compare(measured[REFERENCE], measured[OPENVINO])
        return found is not None and found.is_decided

    return _Comparison(latencies, here, pace, observer, Faults(), is_decided).of({}, openvino)


def _openvino(here: OpenModelHere, pace: Pace) -> tuple[PlainOpenvino | None, tuple[str, ...]]:
    """OpenVINO if it computes what onnxruntime computes and there is time for it, and a sentence if it does not."""
    if here.baselines.openvino is None:
        return None, ()
    if not pace.has_time_for_openvino:
        return None, pace.openvino_notes
    try:
        here.baselines.openvino.opened  # noqa: B018 - raises if it may not be compared
    except MismatchError as error:
        return None, (f"OpenVINO computes something else than onnxruntime, so it was not compared: {error}.",)
    except DeviceError:
        return None, ()
    return here.baselines.openvino, ()


@dataclass(frozen=True, eq=False)
class _Comparison:
    latencies: ModelLatencies
    here: OpenModelHere
    pace: Pace
    observer: Observer
    faults: Faults
    is_decided: Callable[[Mapping[str, Measurement]], bool]

    def known(self, ways: Mapping[str, Way], openvino: PlainOpenvino) -> _Measured | None:
        """What an earlier comparison of `ways`, plain onnxruntime and OpenVINO found, see `_known`."""
        return self._known(self._texts(ways, openvino))

    def of(self, ways: Mapping[str, Way], openvino: PlainOpenvino | None) -> _Measured:
        """The latencies of `ways`, plain onnxruntime and OpenVINO, known or measured now, and onnxruntime's setting."""
        texts = self._texts(ways, openvino)
        known = self._known(texts)
        if known is not None:
            return known
        if self.pace.is_hurried and self.pace.left_s < self.pace.least_comparison_s(len(texts)):
            ways = {name: way for name, way in ways.items() if name not in _OPTIONAL}
        # Schedules that are the same are measured once, so that a later run finds the latencies that this one had.
        twin = {texts[name]: name for name in reversed(tuple(ways))}
        once = {name: ways[name] for name in reversed(tuple(twin.values()))}
        measured, setting = self._measured_now(once, openvino)
        found = {**measured, **{name: measured[first] for name in ways if (first := twin[texts[name]]) in measured}}
        if self._is_thorough(measured):  # otherwise a later run that has more time shall measure again
            kept = {name: text for name, text in texts.items() if name in found}
            self.latencies.keep(kept, found, {} if setting is None else {REFERENCE: setting.description})
        return found, setting

    def _texts(self, ways: Mapping[str, Way], openvino: PlainOpenvino | None) -> dict[str, str]:
        """For each way a text that says all of how it runs."""
        texts = {name: way.text + self.here.measuring.opened_with for name, way in ways.items()}
        if self.here.baselines.onnxruntime is not None:
            texts[REFERENCE] = REFERENCE
        if openvino is not None:
            texts[OPENVINO] = openvino.text
        return texts

    def _known(self, texts: Mapping[str, str]) -> _Measured | None:
        """The latencies and onnxruntime's setting in an earlier comparison of the same ways; None if there was none.

        None as well if it left open what is faster, unless there is less time now than a whole comparison takes.
        """
        found, plain = self.latencies.known(texts), self.here.baselines.onnxruntime
        if found is None or not (self._is_short(len(texts)) or self.is_decided(found)):
            return None
        if plain is None:
            return found, None
        setting = {each.description: each for each in plain.settings}.get(self.latencies.setting(texts) or "")
        return None if setting is None else (found, setting)

    def _is_short(self, n_candidates: int) -> bool:
        return self.pace.comparison(self.here.measuring.budget, n_candidates).rounds < self.here.measuring.budget.rounds

    def _is_thorough(self, measured: Mapping[str, Measurement]) -> bool:
        if any(each.disturbed_by for each in measured.values()):
            return False
        n_rounds = min(len(each.samples_us) for each in measured.values())
        is_limited = self.pace.is_hurried or self.pace.interrupt.accepted
        return n_rounds >= self.here.measuring.budget.rounds or not is_limited

    def _measured_now(self, ways: Mapping[str, Way], openvino: PlainOpenvino | None) -> _Measured:
        inputs = random_inputs(self.latencies.model.graph.inputs)
        candidates: dict[str, Candidate] = {}
        setting = None
        with closing_all(candidates):
            if (plain := self.here.baselines.onnxruntime) is not None:
                setting = self._best_setting(inputs)
                candidates[REFERENCE] = plain.ready(setting, inputs)
            if openvino is not None:
                candidates[OPENVINO] = openvino.ready(inputs)
            for name, way in ways.items():
                with self.faults.contained(_WORDS.format(name)):
                    candidates[name] = self._ready(way, inputs)
            if ways and ways.keys().isdisjoint(candidates):
                raise self.faults.first
            return self._in_turn(candidates), setting

    def _ready(self, way: Way, inputs: Arrays) -> Candidate:
        """The way ready to be timed; it is run once, so that a way that fails does so here."""
        found = self.here.ready(way, inputs)
        try:
            found.time(1)
        except BaseException:
            found.close()
            raise
        return found

    def _best_setting(self, inputs: Arrays) -> ReferenceSettings:
        """The setting in which plain onnxruntime is fastest; its usual one if there is no time to find that out."""
        plain = self.here.baselines.onnxruntime
        assert plain is not None
        return plain.best(inputs) if self.pace.can_choose_setting else plain.settings[0]

    def _in_turn(self, candidates: Mapping[str, Candidate]) -> Mapping[str, Measurement]:
        budget = self.pace.comparison(self.here.measuring.budget, len(candidates))
        return compared_in_turn(self.here, candidates, budget, self.pace.interrupt, self._round_done)

    def _round_done(self, done: int, total: int) -> None:
        self.observer.progress(done, total, f"comparing with {self.here.measuring.wording.rival}")
