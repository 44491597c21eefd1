"""Durations and rates on the command line, one for all models or one for each name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import click

from iosched.cli.common.named_models import name_of
from iosched.models.errors import UsageError

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_ALL = ""

ByName = Mapping[str, float]
"""Values by the names of models; the empty name is for all others."""


def parse_duration(text: str) -> float:
    """Seconds of a text such as 500us, 50ms or 2s.

    Raises:
        click.BadParameter: it has another form.
    """
    return _positive(text, _SECONDS, "50ms")


def parse_seconds(text: str) -> float:
    """Seconds of a text such as 20, or of a duration."""
    return parse_duration(text if text[-1:] == "s" else f"{text}s")


def parse_rate(text: str) -> float:
    """Requests per second of a text such as 20/s."""
    return _positive(text, {"/s": 1.0}, "20/s")


def _positive(text: str, units: Mapping[str, float], form: str) -> float:
    unit = next((unit for unit in units if text.endswith(unit)), None)
    try:
        found = math.nan if unit is None else float(text.removesuffix(unit)) * units[unit]
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise click.BadParameter(f"{text!r} is not of the form {form}.")
    return found


def by_name(parse: Callable[[str], float]) -> Callable[[click.Context, click.Parameter, str | None], ByName]:
    """Click callback for VALUE or NAME=VALUE,…; without the option, the result is empty."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> ByName:
        del ctx, param
        pairs = [] if text is None else [word.rpartition("=") for word in text.split(",")]
        found = {name.strip(): parse(value.strip()) for name, _, value in pairs}
        if len(found) < len(pairs):
            raise click.BadParameter(f"{text!r} has two values for one model.")
        return found

    return callback


def for_models(values: ByName, names: Sequence[str], option: str) -> dict[str, float]:
    """The value of each model.

    Raises:
        UsageError: a name is that of no model, or a model has no value.
    """
    values = {name if name in names else name_of(name): value for name, value in values.items()}
    if unknown := [name for name in values if name and name not in names]:
        raise UsageError(f"{option} {unknown[0]}: there is no such model; models are {', '.join(names)}")
    if missing := [name for name in names if name not in values and _ALL not in values]:
        raise UsageError(f"{option} has no value for model {missing[0]}")
    return {name: values.get(name, values.get(_ALL, 0.0)) for name in names}
