"""What a study asks of a variant: objectives to minimise or maximise, and constraints that it has to meet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

from iosched.models.errors import UsageError

Direction = Literal["min", "max"]
Relation = Literal["<=", ">="]

LATENCY = "latency:"
"""Begins the names of latencies: `latency:cpu` is that of what ships on the CPU, in microseconds."""

COUNTED = ("flops", "params")
"""What is known of a variant without running it: floating-point operations of one run, and numbers in its weights."""

DEFAULT_OBJECTIVE = "min:latency:cpu"
SAMPLER_NAMES = ("random", "grid", "evolution", "steady-evolution", "tpe", "nsga2")
DEFAULT_SAMPLER, DEFAULT_POPULATION = "evolution", 20

_SCORE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_MOST = 16
_LONGEST = 200


def is_scored(name: str) -> bool:
    """Whether a score command has to say the value of this name."""
    return name not in COUNTED and not name.startswith(LATENCY)


def device_of(name: str) -> str | None:
    """The device whose latency a name stands for; None for other names."""
    return name.removeprefix(LATENCY) if name.startswith(LATENCY) else None


@dataclass(frozen=True)
class Objective:
    """A value of a variant that is to be as small, or as large, as can be."""

    name: str
    direction: Direction

    def loss(self, value: float) -> float:
        """The value as one to be minimised."""
        return value if self.direction == "min" else -value

    def __str__(self) -> str:
        return f"{self.direction}:{self.name}"


@dataclass(frozen=True)
class Constraint:
    """A bound that a value of a variant has to keep to."""

    name: str
    relation: Relation
    bound: float

    def violation(self, value: float) -> float:
        """How far the value is beyond the bound, as a part of it where it is not 0; at most 0 if the value keeps to it.

        So violations of constraints in different units can be added.
        """
        beyond = value - self.bound if self.relation == "<=" else self.bound - value
        return beyond / (abs(self.bound) or 1.0)

    def __str__(self) -> str:
        return f"{self.name}{self.relation}{self.bound:g}"


Wanted = TypeVar("Wanted", Objective, Constraint)


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """The objectives in texts like `min:latency:cpu,max:accuracy`.

    Without `min:` or `max:`, latencies, `flops` and `params` are minimised, and what a score command says is maximised.

    Raises:
        UsageError: a text is not of that form, or a name stands there twice.
    """
    return _each_once(map(_objective, _words(texts)), "objective", lambda each: each.name)


def parse_constraints(texts: Iterable[str]) -> tuple[Constraint, ...]:
    """The constraints in texts like `latency:cpu<=5000,accuracy>=0.9`.

    Raises:
        UsageError: a text is not of that form.
    """
    return _each_once(map(_constraint, _words(texts)), "constraint", lambda each: (each.name, each.relation))


def total_violation(constraints: Sequence[Constraint], values: Mapping[str, float]) -> float:
    """By how much, in sum, the constraints are violated that are; 0 if all are met."""
    return math.fsum(max(each.violation(values[each.name]), 0.0) for each in constraints)


def names_in(objectives: Iterable[Objective], constraints: Iterable[Constraint]) -> tuple[str, ...]:
    """The different values that have to be known of a variant."""
    return tuple(dict.fromkeys([*(each.name for each in objectives), *(each.name for each in constraints)]))


def _words(texts: Iterable[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _each_once(found: Iterable[Wanted], what: str, key: Callable[[Wanted], object]) -> tuple[Wanted, ...]:
    asked = tuple(found)
    keys = [key(each) for each in asked]
    if repeated := next((each.name for place, each in enumerate(asked) if keys[place] in keys[:place]), None):
        raise UsageError(f"{what} {repeated!r} is given twice: leave one out")
    if len(asked) > _MOST:
        raise UsageError(f"{len(asked)} {what}s: there may be {_MOST}")
    return asked


def _objective(word: str) -> Objective:
    head, colon, rest = word.partition(":")
    if colon and head in get_args(Direction):
        return Objective(_name(rest, word), cast(Direction, head))
    return Objective(_name(word, word), "max" if is_scored(word) else "min")


def _constraint(word: str) -> Constraint:
    match = re.fullmatch(r"(.+?)\s*(<=|>=)\s*(\S+)", word)
    if match is None:
        raise UsageError(f"constraint {word!r} is not of the form NAME<=NUMBER or NAME>=NUMBER")
    bound = math.nan
    with suppress(ValueError):
        bound = float(match[3])
    if not math.isfinite(bound):
        raise UsageError(f"constraint {word!r}: {match[3]!r} is no number; latencies are in microseconds")
    return Constraint(_name(match[1], word), cast(Relation, match[2]), bound)


def _name(name: str, word: str) -> str:
    if name == "latency" or (name.startswith(LATENCY) and not device_of(name)):
        raise UsageError(f"{word!r} does not say on which device: {LATENCY}cpu, {LATENCY}v100, …")
    if len(name) > _LONGEST or not (name.startswith(LATENCY) or _SCORE.fullmatch(name)):
        known = f"{LATENCY}DEVICE, {', '.join(COUNTED)}, and the keys that the score command prints"
        raise UsageError(f"{word!r} names nothing that can be known of a model: there are {known}")
    return name
