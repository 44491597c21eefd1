"""The score command: the user's own program, which a worker runs to score a variant."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from iosched.jobs.exploring.running import CommandResult, run_command
from iosched.jobs.pool.messages import InterruptedTaskError
from iosched.jobs.pool.task import Context, Kind
from iosched.models.errors import IoschedError, UsageError

MODEL, PARAMS = "{model}", "{params}"
UNNAMED = "score"
"""The name of a score that is a single number and has no other name."""

_MOST_KEYS = 100
_SHOWN = 200


class ScoreError(IoschedError):
    """The score command failed, or printed no score."""


@dataclass(frozen=True)
class ScoreCommand:
    """A user's program, and the values that it must print.

    Attributes:
        words: the program and its arguments, in which `{model}` and `{params}` are replaced.
        keys: the names of the values that it must print.
    """

    words: tuple[str, ...]
    timeout_s: float | None
    keys: tuple[str, ...] = (UNNAMED,)

    def filled(self, model: Path, params: Mapping[str, object]) -> list[str]:
        """The program and its arguments for one model and the choices that made it."""
        said = {MODEL: str(model), PARAMS: json.dumps(params, ensure_ascii=False)}
        # In one pass, so that inserted text is not replaced again.
        return [re.sub("|".join(map(re.escape, said)), lambda match: said[match[0]], word) for word in self.words]


def parse_command(text: str, timeout_s: float | None, keys: Sequence[str]) -> ScoreCommand:
    """The score command in a text such as `./score {model} {params}`; its words are split as a shell does."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--score-cmd {text!r}: {error}") from None
    if not words:
        raise UsageError("--score-cmd is empty: give a program and its arguments")
    if not any(MODEL in word or PARAMS in word for word in words):
        raise UsageError(f"--score-cmd has neither {MODEL} nor {PARAMS}, so every model would get the same score")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--score-cmd: program {words[0]!r} does not exist or is not executable")
    return ScoreCommand(tuple(words), timeout_s, tuple(keys) or (UNNAMED,))


def parsed_output(ran: CommandResult, timeout_s: float | None) -> object:
    """The JSON in a command's output: all of it, or the last line."""
    if ran.cut == "time":
        raise ScoreError(f"the score command took longer than {timeout_s:g} s")
    if ran.cut == "output":
        raise ScoreError("the score command printed too much")
    if ran.code:
        raise ScoreError(f"the score command failed with exit code {ran.code}{_last_words(ran)}")
    lines = [line.strip() for line in ran.out.splitlines() if line.strip()]
    if not lines:
        raise ScoreError(f"the score command printed nothing{_last_words(ran)}")
    for text in (ran.out, lines[-1]):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    raise ScoreError(f"the last line of the score command's output is neither a number nor JSON: {_short(lines[-1])}")


def values_of(found: object, keys: Sequence[str]) -> Mapping[str, float]:
    """Values by name in a command's output: a number for the only key, or an object of numbers."""
    if not isinstance(found, dict):
        if len(keys) != 1:
            raise ScoreError(f"the score command printed one number, but {', '.join(keys)} are required: print JSON")
        return {keys[0]: _number(found, "the output of the score command")}
    if missing := [key for key in keys if key not in found]:
        raise ScoreError(
            f"the score command did not print {missing[0]!r}; it printed {_short(', '.join(map(str, found)))}"
        )
    if len(found) > _MOST_KEYS:
        raise ScoreError(f"the score command printed {len(found)} keys, more than {_MOST_KEYS}")
    known = {key: value for key, value in found.items() if key in keys or _is_number(value)}
    return {key: _number(value, f"{key!r} of the score command") for key, value in known.items()}


def _is_number(value: object) -> bool:
    with suppress(OverflowError):  # a whole number larger than any float
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return False


def _number(value: Any, what: str) -> float:
    if not _is_number(value):
        raise ScoreError(f"{what} is not a number: {_short(json.dumps(value))}")
    return float(value)


def _last_words(ran: CommandResult) -> str:
    *_, last = ran.errors.strip().rpartition("\n")
    return f": {_short(last.strip())}" if last else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


@dataclass
class StepReader:
    """Reads the steps in the output of a score command: lines of JSON with a "step" and a value.

    Attributes:
        key: the name of the value.
        on_step: receives each step and its value.
        step: the last step.
    """

    key: str
    on_step: Callable[[int, float], object]
    step: int = -1

    def line(self, text: str) -> None:
        """Reads a line of output; ignores all but steps."""
        found, number = None, None
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
        step, value = (found.get("step"), found.get(self.key)) if isinstance(found, dict) else (None, None)
        if not isinstance(step, int) or not self.step < step < 2**31 or not isinstance(value, int | float):
            return
        with suppress(OverflowError):  # a whole number larger than any float
            number = float(value)
        if number is not None:
            self.step = step
            self.on_step(step, number)


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A score command as a task; nothing is measured meanwhile.

    Attributes:
        name: the name of the model's file.
        command: the program.
        folder: the user's folder on the driver's machine; the program runs in the folder of that name.
        choices: the choices of the model, or by name of several variants in one model.
        members: the names of several variants that are one model.
        watched: the key of the value that the program prints step by step, by which the driver may stop it; None if it
            does not.
    """

    name: str
    command: ScoreCommand
    folder: str
    choices: Mapping[str, Any]
    members: tuple[str, ...] = ()
    watched: str | None = None


class Scored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of one variant by name, or why there are none."""

    values: Mapping[str, float] = {}
    reason: str | None = None


class Scores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of each variant, or why the program printed none at all."""

    of: tuple[Scored, ...] = ()
    reason: str | None = None


def _score(work: Score, here: Context) -> Scores:
    if (missing := _missing(work)) is not None:
        return Scores(reason=f"the worker's machine has no {missing}")
    command, watched = work.command, None if work.watched is None else StepReader(work.watched, here.step)
    timeout_s = command.timeout_s and command.timeout_s * max(1, len(work.members))
    with tempfile.TemporaryDirectory(prefix="iosched-explore-") as folder:
        path = Path(folder) / f"{Path(work.name).name}.onnx"
        here.write(path)
        ran = run_command(
            command.filled(path, work.choices),
            timeout_s=timeout_s,
            folder=Path(work.folder),
            is_stopped=lambda: here.stopped() is not None,
            on_line=None if watched is None else watched.line,
        )
    if ran.cut == "stopped":
        raise InterruptedTaskError("interrupted")
    try:
        found = parsed_output(ran, timeout_s)
    except ScoreError as error:
        return Scores(reason=str(error))
    if not work.members:
        return Scores((_scored(found, command),))
    if not isinstance(found, dict) or not found.keys() & set(work.members):
        return Scores(reason="the score command printed no JSON object with the names of the members")
    return Scores(tuple(_scored(found.get(member), command) for member in work.members))


def _scored(found: object, command: ScoreCommand) -> Scored:
    if found is None:
        return Scored(reason="the score command printed no score for this model")
    try:
        return Scored(values_of(found, command.keys))
    except ScoreError as error:
        return Scored(reason=str(error))


def _missing(work: Score) -> str | None:
    folder, program = Path(work.folder), work.command.words[0]
    if not folder.is_dir():
        return f"folder {work.folder!r} to run the score command in"
    found = shutil.which(str(folder / program) if "/" in program else program)
    return None if found else f"program {program!r}"


SCORE = Kind("score", Score, Scores, _score, is_repeatable=False)
