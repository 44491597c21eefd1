"""Scores variants by the user's command, one by one or several as one model."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from iosched.jobs.batching.plan import composed
from iosched.jobs.exploring.locking import machine
from iosched.jobs.exploring.pruning import Watched, ignored
from iosched.jobs.exploring.running import run_command
from iosched.jobs.exploring.score import ScoreCommand, ScoreError, StoppedError, said, score, values_of
from iosched.jobs.exploring.strategy import Graph, Strategy
from iosched.jobs.interrupt import Interrupt
from iosched.models.errors import IoschedError
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.models.mutation.variant import Variant
from iosched.scheduler.batching.costs import EqualGains

Scores = Mapping[str, float]
Outcome = Scores | ScoreError
"""What the command says of a variant, or why it says nothing."""


class InterruptedTrialError(Exception):
    """The user has interrupted, and something long was going on; the trial has no result."""


class PrunedError(ScoreError):
    """The score command was ended since what it printed was worse than what others had."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores variants.

    Attributes:
        command: what says how good a variant is.
        strategy: says whether to go on with one, where it is asked.
        interrupt: ends a command that is running.
        prunes: whether the strategy is asked.
        refusals: why the command failed with several models as one where it failed with none of them alone; from then
            on models go to it one by one.
    """

    command: ScoreCommand
    strategy: Strategy
    interrupt: Interrupt
    prunes: bool
    refusals: list[str] = field(default_factory=list)

    def scored(self, variants: Sequence[tuple[Graph, Variant]]) -> dict[int, Outcome]:
        """The scores of variants, by the numbers of their trials.

        Those whose inputs are the same go to the command as one model. Where it fails with that, they go one by one.

        Raises:
            InterruptedTrialError: the user has interrupted.
        """
        alike: dict[object, list[tuple[Graph, Variant]]] = defaultdict(list)
        for graph, variant in variants:
            alike[variant.model.graph.inputs].append((graph, variant))
        found: dict[int, Outcome] = {}
        for group in alike.values():
            found |= self._together(group) if len(group) > 1 and not self.refusals else self._one_by_one(group)
        return found

    def _one_by_one(self, group: Sequence[tuple[Graph, Variant]]) -> dict[int, Outcome]:
        return {graph.number: self._alone(graph, variant) for graph, variant in group}

    def _alone(self, graph: Graph, variant: Variant) -> Outcome:
        stops = partial(self.strategy.stops_early, graph)
        watched = Watched(self.command.keys[0], stops) if self.prunes else None
        try:
            with self._file(f"{_member(graph)}.onnx", variant.model) as path:
                return score(
                    self.command,
                    path,
                    variant.choices,
                    is_stopped=lambda: self.interrupt.came or (watched is not None and watched.is_worse),
                    on_line=ignored if watched is None else watched.line,
                )
        except StoppedError:
            if watched is not None and watched.is_worse:
                return PrunedError(watched.reason)
            raise InterruptedTrialError from None
        except ScoreError as error:
            return error

    def _together(self, group: Sequence[tuple[Graph, Variant]]) -> dict[int, Outcome]:
        members = {_member(graph): variant for graph, variant in group}
        try:
            said_of = self._said_of(members)
        except StoppedError:
            raise InterruptedTrialError from None
        except IoschedError as error:  # of the command, or of putting the models together
            alone = self._one_by_one(group)
            if not any(isinstance(outcome, ScoreError) for outcome in alone.values()):
                self.refusals.append(str(error))
            return alone
        return {graph.number: self._taken(said_of.get(_member(graph))) for graph, _ in group}

    def _said_of(self, members: Mapping[str, Variant]) -> Mapping[str, object]:
        """What the command says of several variants as one model: a JSON object by the members' names."""
        choices = {name: dict(variant.choices) for name, variant in members.items()}
        patience_s = self.command.timeout_s and self.command.timeout_s * len(members)
        command = replace(self.command, timeout_s=patience_s)
        whole = one_model({name: variant.model for name, variant in members.items()})
        with self._file("trials.onnx", whole) as path:
            words, is_stopped = command.filled(path, choices), lambda: self.interrupt.came
            found = said(command, run_command(words, timeout_s=command.timeout_s, is_stopped=is_stopped))
        if not isinstance(found, dict) or not found.keys() & members.keys():
            raise ScoreError("the score command printed no JSON object by the members' names")
        return found

    def _taken(self, found: object) -> Outcome:
        if found is None:
            return ScoreError("the score command said nothing of this one of several models")
        try:
            return values_of(found, self.command.keys)
        except ScoreError as error:
            return error

    @contextmanager
    def _file(self, name: str, model: Model) -> Iterator[Path]:
        """A file with the model, while nothing on this machine measures."""
        with tempfile.TemporaryDirectory(prefix="iosched-explore-") as folder:
            path = Path(folder) / name
            with machine("scoring", partial(check_interrupt, self.interrupt)):
                write_model(model.proto, model.weights, path)
                yield path


def check_interrupt(interrupt: Interrupt) -> None:
    """Accepts to go on with a trial, or to wait for it.

    Raises:
        InterruptedTrialError: the user has interrupted.
    """
    if interrupt.came:
        raise InterruptedTrialError


def one_model(models: Mapping[str, Model]) -> Model:
    """The models as one, fed once: what is alike is batched wherever it can be, since nothing says what that costs.

    Raises:
        InvalidModelError: the models' opsets cannot be brought together.
        UsageError: their inputs differ.
    """
    inputs = dict.fromkeys(spec.name for model in models.values() for spec in model.graph.inputs)
    cluster = composed(models, tuple(inputs), "trials")
    try:
        return cluster.batched(cluster.plan("greedy", EqualGains()))
    except ValueError:
        return cluster.model


def _member(graph: Graph) -> str:
    return f"trial-{graph.number:04}"
