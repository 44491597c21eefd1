"""The score command: what the user's own program says of a variant."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iosched.jobs.exploring.running import Ran, run_command
from iosched.models.errors import IoschedError, UsageError

MODEL, PARAMS = "{model}", "{params}"
UNNAMED = "score"
"""What a score is called that is printed as a number alone, where no objective or constraint has a name for it."""

_MOST_KEYS = 100
_SHOWN = 200


class ScoreError(IoschedError):
    """The score command failed, or printed no score."""


class StoppedError(Exception):
    """The score command was ended from here."""


@dataclass(frozen=True)
class ScoreCommand:
    """A program of the user, and the values that it has to say.

    Attributes:
        words: the program and its arguments, in which `{model}` and `{params}` are replaced.
        timeout_s: the seconds that it may take; None for any number.
        keys: the names that it has to say the values of.
    """

    words: tuple[str, ...]
    timeout_s: float | None
    keys: tuple[str, ...] = (UNNAMED,)

    def filled(self, model: Path, params: Mapping[str, object]) -> list[str]:
        """The program and its arguments for one model and the choices that made it."""
        said = {MODEL: str(model), PARAMS: json.dumps(params, ensure_ascii=False)}
        # At once: what a name is replaced by is not looked at again.
        return [re.sub("|".join(map(re.escape, said)), lambda match: said[match[0]], word) for word in self.words]


def parse_command(text: str, timeout_s: float | None, keys: Sequence[str]) -> ScoreCommand:
    """The score command in a text such as `./score {model} {params}`; its words are split as a shell does.

    Raises:
        UsageError: it has no words, names neither the model nor its choices, or there is no such program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--score-cmd {text!r}: {error}") from None
    if not words:
        raise UsageError("--score-cmd is empty: give a program and its arguments")
    if not any(MODEL in word or PARAMS in word for word in words):
        raise UsageError(f"--score-cmd has neither {MODEL} nor {PARAMS}, so it would say the same of every model")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--score-cmd: there is no program {words[0]!r} that can be run")
    return ScoreCommand(tuple(words), timeout_s, tuple(keys) or (UNNAMED,))


def score(
    command: ScoreCommand,
    model: Path,
    params: Mapping[str, object],
    *,
    folder: Path | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_line: Callable[[str], object] = lambda line: None,
) -> Mapping[str, float]:
    """What the command says of a model.

    Args:
        folder: where it is run; by default where this process runs.

    Raises:
        ScoreError: it took too long, failed, or printed no score; the text says which.
        StoppedError: `is_stopped` was true before it ended.
    """
    filled = command.filled(model, params)
    ran = run_command(filled, timeout_s=command.timeout_s, folder=folder, is_stopped=is_stopped, on_line=on_line)
    return values_of(said(command, ran), command.keys)


def said(command: ScoreCommand, ran: Ran) -> object:
    """The JSON that a command printed: all of its output, or else the last line; above it may stand anything.

    Raises:
        ScoreError: it took too long, failed, printed nothing, or its last line is no JSON.
        StoppedError: it was ended before.
    """
    if ran.cut == "stopped":
        raise StoppedError
    if ran.cut == "time":
        raise ScoreError(f"the score command took longer than {command.timeout_s:g} s")
    if ran.cut == "output":
        raise ScoreError("the score command printed more than can be a score")
    if ran.code:
        raise ScoreError(f"the score command failed with exit code {ran.code}{_last_words(ran)}")
    lines = [line.strip() for line in ran.out.splitlines() if line.strip()]
    if not lines:
        raise ScoreError(f"the score command printed nothing{_last_words(ran)}")
    for text in (ran.out, lines[-1]):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    raise ScoreError(f"the last line that the score command printed is neither a number nor JSON: {_short(lines[-1])}")


def values_of(found: object, keys: Sequence[str]) -> Mapping[str, float]:
    """The values by name in what a command printed: a number for the only key, or an object of numbers.

    Raises:
        ScoreError: a key is missing, or a value is no number.
    """
    if not isinstance(found, dict):
        if len(keys) != 1:
            raise ScoreError(f"the score command printed one number, and {', '.join(keys)} are asked for: print JSON")
        return {keys[0]: _number(found, "what the score command printed")}
    if missing := [key for key in keys if key not in found]:
        raise ScoreError(f"the score command did not say {missing[0]!r}; it said {_short(', '.join(map(str, found)))}")
    if len(found) > _MOST_KEYS:
        raise ScoreError(f"the score command printed {len(found)} keys; there may be {_MOST_KEYS}")
    known = {key: value for key, value in found.items() if key in keys or _is_number(value)}
    return {key: _number(value, f"{key!r} of the score command") for key, value in known.items()}


def _is_number(value: object) -> bool:
    with suppress(OverflowError):  # a whole number larger than any float
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return False


def _number(value: Any, what: str) -> float:
    if not _is_number(value):
        raise ScoreError(f"{what} is no number: {_short(json.dumps(value))}")
    return float(value)


def _last_words(ran: Ran) -> str:
    *_, last = ran.errors.strip().rpartition("\n")
    return f": {_short(last.strip())}" if last else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
