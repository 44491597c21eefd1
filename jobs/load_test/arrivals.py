"""Times at which requests arrive: seeded Poisson processes or a file. They are planned before the first is sent."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from iosched.models.errors import UsageError


@dataclass(frozen=True, order=True)
class Arrival:
    """A request for a model, in seconds since the test began; before 0 while it warms up."""

    at_s: float
    model: str


@dataclass(frozen=True)
class Segment:
    """Consecutive arrivals, in seconds since the segment began; those before 0 warm up and are not counted."""

    arrivals: tuple[Arrival, ...]
    seconds: float


def poisson(rates: Mapping[str, float], begin_s: float, end_s: float, seed: int) -> tuple[Arrival, ...]:
    """Independent Poisson processes with these rates in requests per second, by model, in order of time."""
    return tuple(
        sorted(
            each
            for index, name in enumerate(rates)
            for each in _process(name, rates[name], begin_s, end_s, (seed, index))
        )
    )


def _process(model: str, rate: float, begin_s: float, end_s: float, seed: Sequence[int]) -> Iterator[Arrival]:
    random, at_s = np.random.default_rng(seed), begin_s
    while (at_s := at_s + float(random.exponential(1 / rate))) < end_s:
        yield Arrival(at_s, model)


def parse_arrivals(text: str, names: Collection[str], place: str) -> tuple[Arrival, ...]:
    """Lines of "SECONDS NAME", in any order; NAME may be left out if there is one model. '#' starts a comment.

    Raises:
        UsageError: a line has another form or names another model, or there is none; with `place`, the file's name.
    """
    lines = enumerate((line.partition("#")[0].split(maxsplit=1) for line in text.splitlines()), 1)
    found = tuple(sorted(_arrival(words, names, f"{place}, line {number}") for number, words in lines if words))
    if not found:
        raise UsageError(f"{place} has no arrivals: write a line 'SECONDS NAME' for each request")
    return found


def _arrival(words: Sequence[str], names: Collection[str], place: str) -> Arrival:
    at, name = words[0], words[1].strip() if len(words) > 1 else next(iter(names)) if len(names) == 1 else ""
    try:
        at_s = float(at)
    except ValueError:
        at_s = math.nan
    if not 0 <= at_s < math.inf:
        raise UsageError(f"{place}: {at!r} is not a number of seconds from 0 on")
    if name not in names:
        raise UsageError(f"{place}: there is no model {name!r}; models are {', '.join(names)}")
    return Arrival(at_s, name)


def divided(arrivals: Sequence[Arrival], duration_s: float, count: int, warm_up_s: float) -> tuple[Segment, ...]:
    """Cuts `duration_s` into `count` segments of equal length; each warms up with the arrivals just before it."""
    length_s = duration_s / count
    return tuple(
        Segment(
            tuple(
                Arrival(each.at_s - begin_s, each.model)
                for each in arrivals
                if begin_s - warm_up_s <= each.at_s < begin_s + length_s
            ),
            length_s,
        )
        for begin_s in (index * length_s for index in range(count))
    )
