"""The score command of `explore` as a task of a worker, where nothing measures meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from iosched.jobs.exploring.pruning import Watched, ignored
from iosched.jobs.exploring.score import ScoreCommand, ScoreError, StoppedError, score
from iosched.jobs.pool.task import Context, Kind
from iosched.models.graph import Scalar


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that is run, as the user has written it on the driver's machine.

    Attributes:
        name: what the model's file is called.
        command: the program.
        folder: where the user is on the driver's machine; the program is run in the folder of that name.
        choices: what made the model.
        watched: the key of the value that the program prints step by step, which the driver may stop it by; None where
            nobody does.
    """

    name: str
    command: ScoreCommand
    folder: str
    choices: Mapping[str, Scalar]
    watched: str | None = None


class Scored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the program said: values by name, or why it said none, and whether that is since it was stopped."""

    values: Mapping[str, float] = {}
    reason: str | None = None
    is_pruned: bool = False


def _score(work: Score, here: Context) -> Scored:
    if (lacking := _lacking(work)) is not None:
        return Scored(reason=f"there is no {lacking} on the worker's machine")
    watched = Watched(work.watched, partial(_said, here)) if work.watched else None
    with tempfile.TemporaryDirectory(prefix="iosched-explore-") as folder:
        path = Path(folder) / f"{Path(work.name).name}.onnx"
        here.write(path)
        try:
            found = score(
                *(work.command, path, work.choices),
                folder=Path(work.folder),
                is_stopped=lambda: here.stopped() is not None,
                on_line=ignored if watched is None else watched.line,
            )
        except StoppedError:
            if watched is None or here.stopped() != "pruned":
                raise KeyboardInterrupt from None
            return Scored(reason=watched.reason, is_pruned=True)
        except ScoreError as error:
            return Scored(reason=str(error))
    return Scored(found)


def _lacking(work: Score) -> str | None:
    """What the command needs and this machine has not."""
    folder, program = Path(work.folder), work.command.words[0]
    if not folder.is_dir():
        return f"folder {work.folder!r}, in which the score command is to be run,"
    found = shutil.which(str(folder / program) if "/" in program else program)
    return None if found else f"program {program!r}"


def _said(here: Context, step: int, value: float) -> bool:
    """Tells the driver, which knows what other trials had after so many steps; it may end the command."""
    here.step(step, value)
    return False


SCORE = Kind("score", Score, Scored, _score, is_repeatable=False)
