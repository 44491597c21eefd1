"""`iosched.optimize` takes the options of the command line as keywords, or settings."""

from __future__ import annotations

from dataclasses import fields

import pytest
from small_models import branches

import iosched
from iosched.cli.optimize import command
from iosched.jobs import optimize as job
from iosched.jobs.python_api import OptimizeWords
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError

MODEL = branches().SerializeToString()


class AskedError(Exception):
    """Carries the settings, instead of a search."""


@pytest.fixture(autouse=True)
def _no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(model: object, settings: object, *_: object) -> None:
        raise AskedError(settings)

    monkeypatch.setattr(job, "optimize", ask)


def test_keywords_become_settings() -> None:
    with pytest.raises(AskedError) as asked:
        iosched.optimize(MODEL, device="cpu", threads=2, budget=60, strategy="dos", gap=0)
    assert asked.value.args == (OptimizeSettings(device="cpu", threads=2, budget_s=60, strategy="dos", gap_percent=0),)


def test_settings_are_passed_unchanged() -> None:
    settings = OptimizeSettings(threads=3)
    with pytest.raises(AskedError) as asked:
        iosched.optimize(iosched.load_model(MODEL), settings)
    assert asked.value.args == (settings,)


def test_settings_and_keywords_cannot_be_combined() -> None:
    with pytest.raises(UsageError, match="device="):
        iosched.optimize(MODEL, OptimizeSettings(), device="cpu")


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError, match="thread"):
        iosched.optimize(MODEL, thread=2)  # type: ignore[call-arg]


def test_keywords_match_the_settings_and_the_command_line() -> None:
    words = OptimizeWords.__annotations__.keys()
    with_units = {"budget": "budget_s", "gap": "gap_percent"}
    assert {with_units.get(word, word) for word in words} == {f.name for f in fields(OptimizeSettings)}
    options = {name for param in command.params for name in (param.name, *param.opts)}
    assert {word for word in words if word not in options} == {"schedule_from", "launch"}
    assert "--schedule-from" in options
