"""The subject of a study: objectives, constraints, base model, space and seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Meta

from iosched.models.errors import UsageError
from iosched.models.prepared import prepare

Direction = Literal["min", "max"]
Relation = Literal["<=", ">="]

LATENCY = "latency:"
"""Prefix of latencies: `latency:cpu` is the shipped latency on the CPU, in microseconds."""

COUNTED = ("flops", "params")
"""Values known without running a variant: FLOPs of a run, and number of parameters."""

DEFAULT_OBJECTIVE = "min:latency:cpu"
SAMPLER_NAMES = ("random", "grid", "evolution", "steady-evolution", "tpe", "nsga2")
DEFAULT_SAMPLER, DEFAULT_POPULATION = "evolution", 20

CARD_KEY = "iosched"
VERSION = 1

_FORMAT = "iosched.study"
_ABOUT = ("base model", "space", "objectives", "constraints", "seed")
_Text = Annotated[str, Meta(max_length=1000)]
_SCORE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_MOST = 16
_LONGEST = 200


def is_scored(name: str) -> bool:
    """Whether this value is from the score command."""
    return name not in COUNTED and not name.startswith(LATENCY)


def device_of(name: str) -> str | None:
    """The device whose latency a name means; None for other names."""
    return name.removeprefix(LATENCY) if name.startswith(LATENCY) else None


@dataclass(frozen=True)
class Objective:
    """A value of a variant to minimise or maximise."""

    name: str
    direction: Direction

    def loss(self, value: float) -> float:
        """The value as one to be minimised."""
        return value if self.direction == "min" else -value

    def __str__(self) -> str:
        return f"{self.direction}:{self.name}"


@dataclass(frozen=True)
class Constraint:
    """A bound on a value of a variant."""

    name: str
    relation: Relation
    bound: float

    def violation(self, value: float) -> float:
        """The excess over the bound, relative to it unless it is 0; at most 0 if the constraint is met.

        So violations of constraints in different units can be added.
        """
        beyond = value - self.bound if self.relation == "<=" else self.bound - value
        return beyond / (abs(self.bound) or 1.0)

    def __str__(self) -> str:
        return f"{self.name}{self.relation}{self.bound:g}"


Wanted = TypeVar("Wanted", Objective, Constraint)


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """The objectives in texts like `min:latency:cpu,max:accuracy`.

    Without `min:` or `max:`, latencies, `flops` and `params` are minimised, and other scores are maximised.
    """
    return _each_once(map(_objective, _words(texts)), "objective", lambda each: each.name)


def parse_constraints(texts: Iterable[str]) -> tuple[Constraint, ...]:
    """The constraints in texts like `latency:cpu<=5000,accuracy>=0.9`."""
    return _each_once(map(_constraint, _words(texts)), "constraint", lambda each: (each.name, each.relation))


def total_violation(constraints: Sequence[Constraint], values: Mapping[str, float]) -> float:
    """The sum of the violations of all violated constraints; 0 if all are met."""
    return math.fsum(max(each.violation(values[each.name]), 0.0) for each in constraints)


def names_in(objectives: Iterable[Objective], constraints: Iterable[Constraint]) -> tuple[str, ...]:
    """The distinct names of the values that a variant needs."""
    return tuple(dict.fromkeys([*(each.name for each in objectives), *(each.name for each in constraints)]))


def _words(texts: Iterable[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _each_once(found: Iterable[Wanted], what: str, key: Callable[[Wanted], object]) -> tuple[Wanted, ...]:
    asked = tuple(found)
    keys = [key(each) for each in asked]
    if repeated := next((each.name for place, each in enumerate(asked) if keys[place] in keys[:place]), None):
        raise UsageError(f"{what} {repeated!r} is given twice: remove one")
    if len(asked) > _MOST:
        raise UsageError(f"{len(asked)} {what}s are too many: give {_MOST} at most")
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
        raise UsageError(f"constraint {word!r}: {match[3]!r} is not a number; latencies are in microseconds")
    return Constraint(_name(match[1], word), cast(Relation, match[2]), bound)


def _name(name: str, word: str) -> str:
    if name == "latency" or (name.startswith(LATENCY) and not device_of(name)):
        raise UsageError(f"{word!r} lacks a device: write {LATENCY}cpu, {LATENCY}v100, …")
    if len(name) > _LONGEST or not (name.startswith(LATENCY) or _SCORE.fullmatch(name)):
        known = f"{LATENCY}DEVICE, {', '.join(COUNTED)}, or a key that the score command prints"
        raise UsageError(f"{word!r} is not a value of a model: use {known}")
    return name


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    base: _Text
    name: _Text
    space: _Text
    objectives: tuple[_Text, ...]
    constraints: tuple[_Text, ...]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]


prepare(_File)


@dataclass(frozen=True)
class Card:
    """The subject of a study.

    Attributes:
        base: the digest of the base model.
        name: the name of the base model.
        space: the name of the space.
        constraints: the bounds that variants must meet.
        seed: the seed of all choices.
    """

    base: str
    name: str
    space: str
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    seed: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the values to find for each variant."""
        return names_in(self.objectives, self.constraints)

    def plain(self) -> object:
        """The card as plain data for JSON."""
        texts = (tuple(map(str, self.objectives)), tuple(map(repr_of, self.constraints)))
        return msgspec.to_builtins(_File(_FORMAT, VERSION, self.base, self.name, self.space, *texts, self.seed))

    def check_same(self, asked: Card, place: str) -> None:
        """Checks that this study can continue as `asked`."""
        own, other = (dict(zip(_ABOUT, card._texts(), strict=True)) for card in (self, asked))
        if unlike := next((what for what in _ABOUT if own[what] != other[what]), None):
            raise UsageError(
                f"{place} is a study of {self.name} in {self.space} with {unlike} {own[unlike][:200]}, not "
                f"{other[unlike][:200]}\nUse the same, or another --storage."
            )

    def _texts(self) -> tuple[str, ...]:
        listed = (",".join(map(str, asked)) or "none" for asked in (self.objectives, self.constraints))
        return self.base, self.space, *listed, str(self.seed)


def card_of(plain: object, place: str) -> Card:
    """The card in a study's file, which is untrusted."""
    version = plain.get("version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"{place} has version {version} of the format, and this iosched reads {VERSION}: update iosched"
        )
    try:
        file = msgspec.convert(plain, _File, strict=True)
        if file.format != _FORMAT or not file.objectives:
            raise UsageError(f"its format is {file.format[:40]!r}")
        objectives, constraints = parse_objectives(file.objectives), parse_constraints(file.constraints)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{place} is not a study of iosched: {error}") from None
    return Card(file.base, file.name, file.space, objectives, constraints, file.seed)


def repr_of(constraint: Constraint) -> str:
    """The constraint as text with its exact bound."""
    return f"{constraint.name}{constraint.relation}{constraint.bound!r}"
