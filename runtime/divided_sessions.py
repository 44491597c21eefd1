"""Plain onnxruntime on a batch that is divided among sessions, as model servers use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from iosched.models.batch_independence import batched_inputs, with_batch_size
from iosched.models.model import Model
from iosched.runtime.executor import Requests, Runnable
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.teams import Piece, Teams


class DividedReference:
    """A model whose batch is divided among teams, each with a session of `threads` threads.

    Each team runs its pieces of the batch one after another; the results are concatenated into new arrays.

    Raises:
        UsageError: the model does not compute the images of its batch independently.
    """

    def __init__(self, model: Model, teams: Teams, threads: int) -> None:
        self._shares = [pieces for pieces in teams.pieces(model.batch_size) if pieces]
        counts = {piece.count for pieces in self._shares for piece in pieces}
        models = {count: with_batch_size(model, count) for count in counts}
        fewer = next((each for each in models.values() if each is not model), None)
        self._image_inputs = frozenset(() if fewer is None else batched_inputs(model, fewer))
        settings = ReferenceSettings("sequential", threads)
        self._sessions = [
            {count: Reference(models[count], settings) for count in sorted({piece.count for piece in pieces})}
            for pieces in self._shares
        ]
        self._pool = ThreadPoolExecutor(len(self._shares), thread_name_prefix="iosched-team")

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run once and return the outputs by name."""
        found = list(self._pool.map(lambda team: self._share(team, inputs), range(len(self._shares))))
        parts = [part for share in found for part in share]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run."""
        times_us = []
        for _ in range(repeats):
            started = time.perf_counter_ns()
            self.run(inputs)
            times_us.append((time.perf_counter_ns() - started) / 1e3)
        return tuple(times_us)

    def close(self) -> None:
        """Free the sessions and threads."""
        self._pool.shutdown()
        for sessions in self._sessions:
            for each in sessions.values():
                each.close()

    def _share(self, team: int, inputs: Arrays) -> Sequence[Arrays]:
        return [self._sessions[team][piece.count].run(self._part(piece, inputs)) for piece in self._shares[team]]

    def _part(self, piece: Piece, inputs: Arrays) -> Arrays:
        part = slice(piece.first, piece.first + piece.count)
        return {name: array[part] if name in self._image_inputs else array for name, array in inputs.items()}


def open_shared(model: Model, teams: Teams, lanes: int) -> Requests:
    """Open plain onnxruntime on `lanes` cores that are divided into teams; raises as `DividedReference` does."""
    threads = teams.lanes(lanes)
    return Requests([_opener(model, teams, threads)() for _ in range(teams.requests)])


def is_divided(model: Model, teams: Teams) -> bool:
    """Whether several sessions share the batch of one run."""
    return teams.count > 1 or teams.images < model.batch_size


def _opener(model: Model, teams: Teams, threads: int) -> Callable[[], Runnable]:
    if is_divided(model, teams):
        return lambda: DividedReference(model, teams, threads)
    return lambda: Reference(model, ReferenceSettings("sequential", threads))
