"""The `iosched` command. Each of its commands is a file of this folder, `NAME.py`, and an entry of `COMMANDS`."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from typing import Any

import click

from iosched.cli.complete import VARIABLE, use_in_shells
from iosched.cli.errors import guarded, warnings_as_notes
from iosched.cli.log_file import WORDS, logged
from iosched.cli.options import verbosity_options


def version_text() -> str:
    """One line; its second word is the version of the package, as ever."""
    from iosched.models.version import iosched_version
    from iosched.runtime.device import compiled_executor

    compiled = compiled_executor()
    executor = "executor in Python" if compiled is None else f"compiled executor {compiled.partition(' ')[0]}"
    system = f"{platform.system()} {platform.machine()}".strip()
    return f"iosched {iosched_version()} ({executor}; Python {platform.python_version()}; {system})"


def print_version(ctx: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    """Prints that line and ends the call; for click."""
    if not is_wanted or ctx.resilient_parsing:
        return
    click.echo(version_text())
    ctx.exit()


COMMANDS = {
    "optimize": "getting-started.md#optimize-a-model",
    "batch": "batching.md",
    "run": "getting-started.md#run-it",
    "bench": "measurement.md",
    "diff": "regressions.md",
    "matrix": "ranking.md",
    "rank": "ranking.md",
    "explore": "exploring.md",
    "inspect": "search.md",
    "show": "reading-schedules.md",
    "explain": "getting-started.md#look-at-it",
    "zoo": "getting-started.md",
    "devices": "devices.md",
    "doctor": "troubleshooting.md",
    "profile": "files.md#the-profile-database",
    "completion": "getting-started.md#completion-in-the-shell",
}
"""The commands, each with the section of docs/ that is its guide."""


class LazyGroup(click.Group):
    """A group that imports the file of a command when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports `iosched.cli.NAME` and returns its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"iosched.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the closest command where there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" There are: {', '.join(COMMANDS)}."
            raise click.UsageError(error.message + hint, ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the options before the command's name; the words stay known, for the log and for results."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the command line; `--help` and `--version`, which print while it is parsed, may meet a closed pipe."""
        with guarded():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command, and turns whatever it raises into an exit code."""
        with warnings_as_notes(), logged(ctx), guarded(ctx):
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and the executor's interface version, and exit.",
)
@verbosity_options
def cli() -> None:
    """Make ONNX models faster by running operators in parallel with each other.

    MODEL is an ONNX file, '-' for standard input, or 'zoo:NAME' for a bundled network.

    \b
    First steps:
      iosched optimize zoo:squeezenet
      iosched run squeezenet.iosched.onnx --check

    \b
    Exit codes:
      0  done
      1  failed
      2  wrong usage or bad input file
      3  device or dependency missing
      4  outputs differ or a regression gate failed
      130  interrupted (Ctrl-C)
    """


def main() -> None:
    """Entry point of the `iosched` script; a shell that asks for completions calls it too."""
    _replace_closed_streams()
    if VARIABLE in os.environ:
        use_in_shells()
    cli(prog_name="iosched")


def _replace_closed_streams() -> None:
    """Opens /dev/null for each standard stream that was closed when the process began (`iosched ... >&-`).

    Otherwise the next file that is opened, such as the profile database, would get the stream's number, and what
    libraries print would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
