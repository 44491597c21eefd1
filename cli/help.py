"""Two help lengths: `--help` shows the basic options, `--help-all` every option with details.

Both show the first paragraph of a help text; `--help-all` and docs/cli show the others.
"""

from __future__ import annotations

import inspect
from copy import copy
from itertools import chain
from typing import Any

import click

SHOWS_ALL = "iosched.help_all"
"""Key in the context's `meta`: show all options and details."""

_SECTIONS = {
    "Model": "batch-size batch-sizes input-shape share-input precision model",
    "Search": "strategy r s no-pruning budget gap objective policy memory exhaustive strict resume profile-db dry-run",
    "Device": "device threads barriers layout",
    "Cluster": "cluster",
    "Input and output": "input output schedule schedule-from units replace against format plot trace json",
    "Other": "quiet verbose debug log-file help-all help",
}
_COMMON = {"quiet", "verbose", "debug", "log-file"}


class Command(click.Command):
    """A command with option headings and two help lengths.

    Args:
        basic: options that `--help` shows, without dashes, separated by spaces; default: all but the common ones.
    """

    def __init__(self, *args: Any, basic: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {_word(param) for param in self.params} - _COMMON
        self._basic = (set(basic.split()) or own) | {"help", "help-all"}
        self.params.append(_help_all())

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first paragraph and the examples, or all paragraphs."""
        first, *others = inspect.cleandoc(self.help or "").split("\n\n")
        shown = [text for text in others if ctx.meta.get(SHOWS_ALL) or text.startswith("\b")]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join([first, *shown]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        rows = {_word(param): row for param in self.get_params(ctx) if (row := self._row(param, ctx))}
        sections = {heading: names.split() for heading, names in _SECTIONS.items()}
        others = [name for name in rows if name not in chain(*sections.values())]
        for heading, names in {"Options": others, **sections}.items():
            if shown := [rows[name] for name in names if name in rows]:
                with formatter.section(heading):
                    formatter.write_dl(shown)

    def _row(self, param: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
        if not isinstance(param, click.Option):
            return None
        shown, text = copy(param), param.help or ""
        if ctx.meta.get(SHOWS_ALL):
            shown.help = text.replace("\n\n", " ")
        elif _word(param) in self._basic:
            shown.help, shown.show_envvar = text.partition("\n\n")[0], False
        else:
            return None
        return shown.get_help_record(ctx)


class Group(click.Group):
    """A group of `Command`s."""

    command_class = Command


def _word(param: click.Parameter) -> str:
    return next((name for name in param.opts if name.startswith("--")), param.opts[0]).lstrip("-")


def _help_all() -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_all,
        help="Show all options and exit.",
    )


def _print_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
