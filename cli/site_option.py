"""Options that a site sets once, in the environment or in a file, in place of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from iosched.cli.site_files import setting
from iosched.models.errors import DeviceError, UsageError

_KEY = "iosched.set_elsewhere"
_SAYS_WHERE = ("--device", "--cluster")


@dataclass(frozen=True)
class SetElsewhere:
    """An option that was not written on the command line, and yet has a value.

    Attributes:
        flags: the option's names on the command line.
        text: its value.
        place: who set it, as people call it.
    """

    flags: tuple[str, ...]
    text: str
    place: str

    def __str__(self) -> str:
        return f"({self.flags[0]} {self.text} comes from {self.place})"


class SiteOption(click.Option):
    """An option whose value, where the command line has none, comes from the environment, or else from a file.

    The variable is that in `envvar`; one that is empty counts as not set. `--help` names it. The key in files is its
    name without IOSCHED_: see `site_files`. An error of a value names the variable or the file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "show_envvar": True})

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Finds the value, and writes down where it was set.

        Raises:
            UsageError: a file of settings is not understood.
        """
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.ENVIRONMENT:
            self._write_down(ctx, self.resolve_envvar_value(ctx) or "", f"{self.envvar}")
        elif source is ParameterSource.DEFAULT and not ctx.resilient_parsing:
            found = setting(f"{self.envvar}".removeprefix("IOSCHED_").lower().replace("_", "-"))
            if found is not None:
                self._write_down(ctx, str(found[0]), str(found[1]))
                return (found[0],) if self.multiple else found[0], ParameterSource.DEFAULT_MAP
        return value, source

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """What an error calls the option: with the variable where that is at fault, or could mend it."""
        known = None if ctx is None else settings_elsewhere(ctx).get(self.opts[0])
        if known is not None:
            return f"'{known.flags[0]}' (from {known.place})"
        hint = super().get_error_hint(ctx)
        written = ctx is not None and ctx.get_parameter_source(self.name or "") is ParameterSource.COMMANDLINE
        return hint.partition(" (")[0] if written else hint

    def _write_down(self, ctx: click.Context, text: str, place: str) -> None:
        ctx.meta[_KEY] = {**settings_elsewhere(ctx), self.opts[0]: SetElsewhere(tuple(self.opts), text, place)}


def settings_elsewhere(ctx: click.Context) -> Mapping[str, SetElsewhere]:
    """The options of the command that were set elsewhere than on the command line, by their first names."""
    found: Mapping[str, SetElsewhere] = ctx.meta.get(_KEY, {})
    return found


def settings_behind(error: Exception, ctx: click.Context) -> list[str]:
    """Which settings that nobody sees on the command line an error may come from, a line for each."""
    if not isinstance(error, UsageError | DeviceError):
        return []
    text = str(error)
    return [
        str(setting)
        for flag, setting in settings_elsewhere(ctx).items()
        if (isinstance(error, DeviceError) and flag in _SAYS_WHERE)
        or any(_has_word(text, word) for word in (*setting.flags, setting.text))
    ]


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None
