"""Compares ways to run a model by interleaved measurements: the schedule found, the baselines, plain onnxruntime."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from iosched.jobs.observer import Observer
from iosched.jobs.schedules import known_in_lanes
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import DeviceError, MismatchError, SeparateProcessError, first_line
from iosched.models.log import logger
from iosched.profiler.baselines.library import LibraryBaseline
from iosched.profiler.devices.profiled_device import AttachedModel, Way
from iosched.profiler.measuring.deciding import Trial, shares, until_settled
from iosched.profiler.measuring.interleaved_models import WARMUP_ROUNDS, close_all, interference_notes
from iosched.profiler.measuring.statistics import Measurement, quantile
from iosched.profiler.store.latencies import ModelLatencies
from iosched.runtime.executor import Candidate
from iosched.runtime.faults import Faults
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import ReferenceSettings
from iosched.scheduler.baselines import greedy
from iosched.scheduler.cost import divided
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.strategies import BY_IMAGE, LANES, ONE_SESSION

_log = logger(__name__)

REFERENCE = "reference"
"""The name of plain onnxruntime among the ways that are compared."""

OPENVINO, TENSORRT = LIBRARIES = ("openvino", "tensorrt")
"""The names of libraries, without a schedule, among the ways that are compared."""

ORDER_SEED = 0
"""The seed of the order of ways within a round."""

_WORDS = "the whole model with the schedule {!r}"
"""The description of a way in messages."""

_UNSEARCHED = ("sequential", ONE_SESSION, BY_IMAGE, LANES, "greedy")
"""The names of ways that need no search."""


@dataclass(frozen=True)
class ComparedModels:
    """The ways that were compared, and their rounds.

    Attributes:
        found: the names of the ways to run the schedule that was found, the preferred one first.
        ways: all ways to run schedules by name.
        trial: their rounds, and those of plain onnxruntime and a library.
        setting: the setting of plain onnxruntime; None if it was not compared.
        notes: notes for the user on the comparison.
    """

    found: tuple[str, ...]
    ways: Mapping[str, Way]
    trial: Trial
    setting: ReferenceSettings | None
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> Mapping[str, Measurement]:
        """The latencies of all that was measured by name."""
        names = dict.fromkeys((*self.ways, *self.trial.ours, *self.trial.baselines))
        return {name: each for name in names if (each := self.trial.measured(name))}


@contextmanager
def comparing(
    latencies: ModelLatencies, attached: AttachedModel, time_budget: TimeBudget, observer: Observer, faults: Faults
) -> Iterator[Comparison]:
    """Yields a comparison; closes its candidates at the end.

    Args:
        latencies: earlier rounds of the model on this device.
        attached: the model, open on the device.
        time_budget: the available time.
        observer: is shown the number of finished rounds.
        faults: collects the faults of ways that fail, which are left out.
    """
    comparison = Comparison(latencies, attached, time_budget, observer, faults)
    try:
        yield comparison
    finally:
        close_all(comparison.candidates.values())


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison that can be continued: candidates stay open, and all rounds count."""

    latencies: ModelLatencies
    attached: AttachedModel
    time_budget: TimeBudget
    observer: Observer
    faults: Faults
    candidates: dict[str, Candidate] = field(default_factory=dict)  # by the text of `_texts`

    def of(self, found: Schedule | None, search_s: float | None) -> ComparedModels:
        """Compares ways to run a schedule with the baselines until it is decided which is faster.

        Args:
            found: the schedule that was found, in the device's units; None compares the baselines alone.
            search_s: seconds until the search ended; None to take the minimum number of rounds.
        """
        of_found = {} if found is None else self.attached.ways(found)
        in_turn = self.attached.one_after_another()
        every = {
            **of_found,
            **in_turn,
            **self._more(),
            "greedy": Way(divided(greedy(self.attached.graph), self.attached.cost)),
        }
        ways = every
        if self.time_budget.left_s < self.time_budget.least_comparison_s(len(every) + 1):
            ways = {name: way for name, way in every.items() if name in of_found or name == "sequential"}
        second, notes = self._library()
        try:
            trial, setting = self._measured(every, ways, tuple(of_found), second, search_s)
        except SeparateProcessError as error:
            if second is None or error.candidate != second.name:
                raise
            notes = (_without(second, error),)
            trial, setting = self._measured(every, ways, tuple(of_found), None, search_s)
        compared = ComparedModels(tuple(name for name in of_found if trial.has(name)), ways, trial, setting)
        if not any(map(trial.has, in_turn)) or (of_found and not compared.found):
            raise self.faults.first
        return replace(compared, notes=(*interference_notes(compared.measured), *notes, *self.faults.notes))

    def of_libraries(self, openvino: LibraryBaseline) -> ComparedModels:
        """Compares OpenVINO with plain onnxruntime; raises as `of` does."""
        trial, setting = self._measured({}, {}, (), openvino, 0.0)
        compared = ComparedModels((), {}, trial, setting)
        return replace(compared, notes=interference_notes(compared.measured))

    def _more(self) -> Mapping[str, Way]:
        """Ways without a search that only some models have."""
        listed = known_in_lanes(self.attached)
        ways = {BY_IMAGE: self.attached.by_image(), LANES: None if listed is None else Way(listed)}
        return {name: way for name, way in ways.items() if way is not None}

    def _library(self) -> tuple[LibraryBaseline | None, tuple[str, ...]]:
        """A library if it computes the same as onnxruntime and time allows, else notes."""
        library = self.time_budget.library
        if library is None:
            return None, ()
        if not self.time_budget.has_time_for_library:
            return None, self.time_budget.library_notes
        self.observer.progress(0, None, f"opening {library.label}")
        try:
            library.opened  # noqa: B018 - raises if it may not be compared
        except MismatchError as error:
            why = f"its outputs differ from those of onnxruntime: {error}"
            return None, (f"{library.label} was not compared because {why}.",)
        except DeviceError as error:
            return None, () if library.name == OPENVINO else (_without(library, error),)
        return library, ()

    def _measured(
        self,
        every: Mapping[str, Way],
        ways: Mapping[str, Way],
        found: tuple[str, ...],
        library: LibraryBaseline | None,
        search_s: float | None,
    ) -> tuple[Trial, ReferenceSettings | None]:
        """Earlier and new rounds; `ways` are those that there is time for."""
        setting = self._setting()
        texts = self._texts(every, setting, library)
        trial = self._trial(texts, found).without(every.keys() - ways.keys())
        opened: dict[str, Candidate] = {}
        limit_s = 0.0 if search_s is None else self.time_budget.deciding_s(search_s, trial.compared_s)
        deadline = time.monotonic() + limit_s
        while trial.ours and not trial.is_settled and not (trial.has_all and self.time_budget.is_spent):
            missing = [name for name in trial.wanted if name not in opened]
            if not missing:
                break
            opened.update(self._opened(missing, ways, setting, library))
            trial = trial.without({*missing} - opened.keys())
            if trial.ours and opened.keys() >= {*trial.wanted}:
                trial = self._until_decided(trial, opened, texts, setting, deadline)
        return trial, setting

    def _trial(self, texts: Mapping[str, str], found: tuple[str, ...]) -> Trial:
        known = self.latencies.known(texts)
        plain = tuple(name for name in (REFERENCE, OPENVINO) if name in texts)
        # Schedules that earlier calls compared have used a share of the error.
        n_earlier = len({name for session in known for name in session.samples_us} - texts.keys())
        if not plain:
            libraries = [name for name in LIBRARIES if name in texts]
            return Trial(known, shares(found, n_earlier, ()), ("sequential", *libraries), ("greedy",))
        if plain == (REFERENCE, OPENVINO) and texts.keys() == {*plain}:
            return Trial(known, {OPENVINO: 0.5}, (REFERENCE,))
        return Trial(known, shares(found, n_earlier, [n for n in _UNSEARCHED if n in texts]), plain)

    def _texts(
        self, ways: Mapping[str, Way], setting: ReferenceSettings | None, library: LibraryBaseline | None
    ) -> dict[str, str]:
        """A text by name that identifies how a way runs."""
        texts = {name: way.text + self.attached.measuring.opened_with for name, way in ways.items()}
        if setting is not None:
            texts[REFERENCE] = f"{REFERENCE}: {setting.description}"
        if library is not None:
            texts[library.name] = library.text
        return texts

    def _setting(self) -> ReferenceSettings | None:
        """The setting of plain onnxruntime in earlier rounds, else the fastest, or the usual one if time is short."""
        plain = self.attached.baselines.onnxruntime
        if plain is None:
            return None
        known = self.latencies.setting()
        settings = {each.description: each for each in plain.settings}
        if known in settings:
            return settings[known]
        inputs = random_inputs(self.latencies.model.graph.inputs)
        return plain.best(inputs) if self.time_budget.can_choose_setting else plain.settings[0]

    def _opened(
        self,
        names: Sequence[str],
        ways: Mapping[str, Way],
        setting: ReferenceSettings | None,
        library: LibraryBaseline | None,
    ) -> Mapping[str, Candidate]:
        """The named ways ready to be timed, except those that fail; ways of equal text are opened once."""
        inputs = random_inputs(self.latencies.model.graph.inputs)
        opened: dict[str, Candidate] = {}
        texts = self._texts(ways, setting, library)
        for name in names:
            text = texts[name]
            if text in self.candidates:
                opened[name] = self.candidates[text]
            elif name == REFERENCE and setting is not None:
                plain = self.attached.baselines.onnxruntime
                assert plain is not None
                opened[name] = self.candidates[text] = plain.ready(setting, inputs)
            elif library is not None and name == library.name:
                opened[name] = self.candidates[text] = library.ready(inputs)
            else:
                with self.faults.contained(_WORDS.format(name)):
                    self.candidates[text] = opened[name] = _tried(self.attached.ready(ways[name], inputs))
        return opened

    def _until_decided(
        self,
        trial: Trial,
        opened: Mapping[str, Candidate],
        texts: Mapping[str, str],
        setting: ReferenceSettings | None,
        deadline: float,
    ) -> Trial:
        """Adds rounds until the trial is decided, wants other ways, or time is over."""
        first = {texts[name]: name for name in reversed(tuple(opened))}  # equal ways are measured once
        take = self.attached.rounds({name: opened[name] for name in first.values()})
        for _ in range(WARMUP_ROUNDS):
            take([*first.values()])
        n_known, least = len(trial.sessions), self.time_budget.least_rounds

        def is_over(done: int) -> bool:
            nonlocal deadline
            self.observer.progress(done, None, f"comparing with {self.attached.measuring.wording.baseline}")
            if self.time_budget.interrupt.came:
                self.time_budget.ask()
                deadline = -math.inf
            wanted = least if self.time_budget.left_s <= 0 else max(least, trial.least_rounds)
            return done >= wanted and time.monotonic() >= deadline

        measured_as = {name: first[texts[name]] for name in texts if texts[name] in first}
        found = until_settled(trial, take, measured_as, is_over, random.Random(ORDER_SEED))
        for session in found.sessions[n_known:]:
            self.latencies.keep(texts, session, {} if setting is None else {REFERENCE: setting.description})
            for name, samples_us in session.samples_us.items():
                _log.info("whole model, %s: %.1f us, %d rounds", name, quantile(samples_us, 0.5), len(samples_us))
        return found


def _without(library: LibraryBaseline, error: Exception) -> str:
    return f"{library.label} was not compared: {first_line(error)}."


def _tried(candidate: Candidate) -> Candidate:
    try:
        candidate.time(1)
    except BaseException:
        candidate.close()
        raise
    return candidate
