"""Durations and rates, one for all models or one for each name."""

from __future__ import annotations

import click
import pytest

from iosched.cli.common.quantities import by_name, for_models, parse_duration, parse_rate, parse_seconds
from iosched.models.errors import UsageError


def parsed(text: str | None) -> dict[str, float]:
    command = click.Command("c")
    return dict(by_name(parse_rate)(click.Context(command), click.Option(["--requests"]), text))


@pytest.mark.parametrize(
    ("text", "seconds"), [("500us", 5e-4), ("500µs", 5e-4), ("50ms", 0.05), ("2s", 2.0), ("1.5s", 1.5), ("1e3ms", 1.0)]
)
def test_durations_have_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_seconds(text) == pytest.approx(seconds)


def test_seconds_need_no_unit() -> None:
    assert parse_seconds("20") == 20.0


@pytest.mark.parametrize("text", ["", "s", "5", "5m", "0ms", "-1s", "nans", "infs", "5 ms x"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not of the form 50ms"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["20", "/s", "0/s", "x/s", "20/min"])
def test_rates_are_per_second(text: str) -> None:
    assert parse_rate("2.5/s") == 2.5
    with pytest.raises(click.BadParameter, match="is not of the form 20/s"):
        parse_rate(text)


def test_a_value_applies_to_all_models_or_to_a_named_one() -> None:
    assert parsed(None) == {}
    assert for_models(parsed("20/s"), ["a", "b"], "--requests") == {"a": 20.0, "b": 20.0}
    assert for_models(parsed("a=1/s, b=2/s"), ["a", "b"], "--requests") == {"a": 1.0, "b": 2.0}
    assert for_models(parsed("20/s,b=2/s"), ["a", "b"], "--requests") == {"a": 20.0, "b": 2.0}
    assert for_models(parsed("x=y=1/s"), ["x=y"], "--requests") == {"x=y": 1.0}


def test_a_model_is_also_named_by_its_file() -> None:
    given = parsed("a.iosched=1/s,b.iosched.onnx=2/s,c.plan=3/s,zoo:d=4/s,e.iosched=5/s")
    names = ["a", "b", "c", "d", "e.iosched"]
    assert for_models(given, names, "--requests") == dict(zip(names, [1.0, 2.0, 3.0, 4.0, 5.0], strict=True))


@pytest.mark.parametrize(("text", "why"), [("", "form 20/s"), ("1/s,", "form 20/s"), ("a=1/s,a=2/s", "two values")])
def test_empty_and_repeated_values_are_refused(text: str, why: str) -> None:
    with pytest.raises(click.BadParameter, match=why):
        parsed(text)


def test_unknown_names_and_models_without_a_value_are_refused() -> None:
    with pytest.raises(UsageError, match="--requests c: there is no such model; models are a, b"):
        for_models({"c": 1.0}, ["a", "b"], "--requests")
    with pytest.raises(UsageError, match="--requests has no value for model b"):
        for_models({"a": 1.0}, ["a", "b"], "--requests")
