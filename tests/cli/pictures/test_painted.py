"""Operators of several models have a colour for each model on a terminal, and plain text elsewhere."""

from __future__ import annotations

import click

from iosched.cli.pictures.theme import Style
from iosched.cli.show import coloured

LOOKS = {
    "a/y": Style("Conv", "Conv 1x1", "a"),
    "b/y": Style("Conv", "Conv 1x1", "b"),
    "a/z@2": Style("Relu", "Relu", "a + b"),
}
TEXT = "   1  ┬─ Conv 1x1 a/y → Relu a/z@2\n      └─ Conv 1x1 b/y\n"


def test_each_model_has_a_separate_colour() -> None:
    found = coloured(TEXT, LOOKS)
    assert click.unstyle(found) == TEXT
    for name, colour in (("a/y", "cyan"), ("b/y", "magenta"), ("a/z@2", "yellow")):
        assert click.style(name, fg=colour) in found


def test_the_text_of_one_model_stays_as_it_is() -> None:
    assert coloured(TEXT, {"a/y": Style("Conv", "Conv 1x1")}) == TEXT
