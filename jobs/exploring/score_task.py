"""The score command of `explore` as a task of a worker, where nothing measures meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from iosched.jobs.exploring.pruning import Watched, ignored
from iosched.jobs.exploring.running import run_command
from iosched.jobs.exploring.score import ScoreCommand, ScoreError, StoppedError, said, values_of
from iosched.jobs.pool.messages import InterruptedTaskError
from iosched.jobs.pool.task import Context, Kind


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the user's, as it is run on the driver's machine.

    Attributes:
        name: the name of the model's file.
        command: the program.
        folder: the user's folder on the driver's machine; the program runs in the folder of that name.
        choices: what made the model; of several variants as one model those of each, by its name.
        members: the names of several variants that are one model.
        watched: the key of the value that the program prints step by step, by which the driver may stop it; None where
            nobody does.
    """

    name: str
    command: ScoreCommand
    folder: str
    choices: Mapping[str, Any]
    members: tuple[str, ...] = ()
    watched: str | None = None


class Scored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of one variant by name, or why there are none, and whether that is since the program was stopped."""

    values: Mapping[str, float] = {}
    reason: str | None = None
    is_pruned: bool = False


class Scores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of each variant, or why the program printed none at all."""

    of: tuple[Scored, ...] = ()
    reason: str | None = None


def _score(work: Score, here: Context) -> Scores:
    if (lacking := _lacking(work)) is not None:
        return Scores(reason=f"there is no {lacking} on the worker's machine")
    watched = Watched(work.watched, partial(_said, here)) if work.watched else None
    timeout_s = work.command.timeout_s and work.command.timeout_s * max(1, len(work.members))
    command = replace(work.command, timeout_s=timeout_s)
    with tempfile.TemporaryDirectory(prefix="iosched-explore-") as folder:
        path = Path(folder) / f"{Path(work.name).name}.onnx"
        here.write(path)
        try:
            ran = run_command(
                command.filled(path, work.choices),
                timeout_s=timeout_s,
                folder=Path(work.folder),
                is_stopped=lambda: here.stopped() is not None,
                on_line=ignored if watched is None else watched.line,
            )
            found = said(command, ran)
        except StoppedError:
            if watched is None or here.stopped() != "pruned":
                raise InterruptedTaskError("interrupted") from None
            return Scores((Scored(reason=watched.reason, is_pruned=True),))
        except ScoreError as error:
            return Scores(reason=str(error))
    if not work.members:
        return Scores((_values(found, command),))
    if not isinstance(found, dict) or not found.keys() & set(work.members):
        return Scores(reason="the score command printed no JSON object by the members' names")
    return Scores(tuple(_values(found.get(member), command) for member in work.members))


def _values(found: object, command: ScoreCommand) -> Scored:
    if found is None:
        return Scored(reason="the score command said nothing of this one of several models")
    try:
        return Scored(values_of(found, command.keys))
    except ScoreError as error:
        return Scored(reason=str(error))


def _lacking(work: Score) -> str | None:
    """What the command needs and this machine has not."""
    folder, program = Path(work.folder), work.command.words[0]
    if not folder.is_dir():
        return f"folder {work.folder!r}, in which the score command is to be run,"
    found = shutil.which(str(folder / program) if "/" in program else program)
    return None if found else f"program {program!r}"


def _said(here: Context, step: int, value: float) -> bool:
    """Reports a step to the driver, which knows those of other trials and may end the command."""
    here.step(step, value)
    return False


SCORE = Kind("score", Score, Scores, _score, is_repeatable=False)
