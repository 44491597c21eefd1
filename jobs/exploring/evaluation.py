"""What one variant is worth: it is made, costed, and scored by the user's command."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iosched.jobs.exploring.locking import machine
from iosched.jobs.exploring.objectives import LATENCY, Constraint
from iosched.jobs.exploring.score import ScoreCommand, StoppedError, score
from iosched.jobs.exploring.settings import Asked, ExploreSettings
from iosched.jobs.exploring.strategy import Feedback, Graph, Latency, Strategy
from iosched.jobs.interrupt import Interrupt
from iosched.jobs.progress import Observer, Silence
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.models.errors import DeviceError, DeviceLostError, IoschedError
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.models.mutation.mutator import Mutator
from iosched.models.mutation.variant import Variant, variant_of
from iosched.profiler.devices.resolve import resolve

_MOST_REASON = 1000


class InterruptedTrialError(Exception):
    """The user has interrupted, and something long was going on; the trial has no result."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates variants of one base model."""

    base: Model
    mutators: Sequence[Mutator]
    asked: Asked
    settings: ExploreSettings
    strategy: Strategy
    interrupt: Interrupt
    observer: Observer

    def evaluated(self, graph: Graph) -> Feedback:
        """Makes a graph, and says what came of it.

        Raises:
            DeviceError: no variant can be costed here.
            InterruptedTrialError: the user has interrupted.
        """
        started = time.monotonic()
        return replace(self._made(graph), seconds=time.monotonic() - started)

    def _made(self, graph: Graph) -> Feedback:
        self._say(graph, "made")
        try:
            variant = variant_of(self.base, self.mutators, partial(self.strategy.ask_choice, graph))
            made = Feedback(record=variant.record.to_json(), key=variant.model.digest)
        except Exception as error:  # noqa: BLE001 - mutators are the user's own code
            return Feedback(reason=_reason(error))
        before = next((each for each in self.strategy.history() if each.feedback.key == made.key and each.point), None)
        if before is None:
            return self._valued(graph, variant, made)
        known = before.feedback
        first = before.number if known.reused is None else known.reused
        return replace(made, values=known.values, latencies=known.latencies, reused=first)

    def _valued(self, graph: Graph, variant: Variant, made: Feedback) -> Feedback:
        """The values that are asked for; those that were found before something failed, too."""
        values: dict[str, float] = {}
        latencies: dict[str, Latency] = {}
        try:
            values |= {"flops": float(variant.model.flops), "params": float(variant.model.n_parameters)}
            for device in self.asked.devices:
                self._say(graph, f"latency on {device}")
                cost = self._cost(variant.model, device)
                values[f"{LATENCY}{device}"], latencies[device] = cost.latency_us, _latency(cost)
            if self.asked.score is not None:
                if violated := _violated(self.asked.constraints, values):
                    return replace(made, values=values, latencies=latencies, reason=violated, is_stopped=True)
                self._say(graph, "score")
                values |= self._score(graph, self.asked.score, variant)
        except (DeviceError, DeviceLostError):
            raise
        except _PrunedError as error:
            return replace(made, values=values, latencies=latencies, reason=str(error), is_stopped=True)
        except IoschedError as error:
            return replace(made, values=values, latencies=latencies, reason=_reason(error))
        return replace(made, values=values, latencies=latencies)

    def _cost(self, model: Model, device: str) -> ModelCost:
        settings = replace(self.settings.optimize, device=device)
        if self.settings.measure == "none" or resolve(device, model).cost_kind == "analytic":
            return model_cost(model, self.settings.measure, settings, Silence())
        with machine("measuring", self._check_interrupt):
            return model_cost(model, self.settings.measure, settings, Silence())

    def _score(self, graph: Graph, command: ScoreCommand, variant: Variant) -> Mapping[str, float]:
        watched = _Watched(graph, command.keys[0], self.strategy) if self.settings.prunes else None
        with (
            tempfile.TemporaryDirectory(prefix="iosched-explore-") as folder,
            machine("scoring", self._check_interrupt),
        ):
            path = Path(folder) / f"trial-{graph.number:04}.onnx"
            write_model(variant.model.proto, variant.model.weights, path)
            try:
                return score(
                    command,
                    path,
                    variant.choices,
                    is_stopped=lambda: self.interrupt.came or (watched is not None and watched.is_worse),
                    on_line=_ignored if watched is None else watched.line,
                )
            except StoppedError:
                if watched is not None and watched.is_worse:
                    raise _PrunedError(f"pruned after step {watched.step}: worse than the median of others") from None
                raise InterruptedTrialError from None

    def _check_interrupt(self) -> None:
        if self.interrupt.came:
            raise InterruptedTrialError

    def _say(self, graph: Graph, what: str) -> None:
        self.observer.progress(graph.number, self.settings.trials, f"trial {graph.number}: {what}")


class _PrunedError(Exception):
    """The score command was ended since what it printed was worse than what others had."""


@dataclass
class _Watched:
    """What a score command prints while it runs: lines of JSON with a "step" and what is scored."""

    graph: Graph
    key: str
    strategy: Strategy
    is_worse: bool = False
    step: int = -1

    def line(self, text: str) -> None:
        """Takes a line of the command's output; what is no step is passed over."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        step, value = found.get("step"), found.get(self.key)
        if isinstance(step, int) and self.step < step < 2**31 and isinstance(value, int | float):
            self.step = step
            self.is_worse = self.is_worse or self.strategy.stops_early(self.graph, step, float(value))


def _ignored(line: str) -> None:
    del line


def _latency(cost: ModelCost) -> Latency:
    return Latency(
        *(cost.cost, cost.low_us, cost.high_us, cost.sequential_us, cost.hit_rate),
        search_seconds=cost.search_seconds,
        comparison_seconds=cost.comparison_seconds,
    )


def _violated(constraints: Sequence[Constraint], values: Mapping[str, float]) -> str | None:
    """Which constraint a variant violates, by what is known before it is scored."""
    broken = (each for each in constraints if each.name in values and each.violation(values[each.name]) > 0)
    return next((f"{each.name} is {values[each.name]:g}, not {each}: not scored" for each in broken), None)


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, IoschedError) else f"{type(error).__name__}: {error}"
    return text[:_MOST_REASON]
