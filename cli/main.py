"""The `iosched` command. A subcommand is a file `NAME.py` of this folder and an entry of `COMMANDS`."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from typing import Any

import click

from iosched.cli.common.complete import VARIABLE, register_completions
from iosched.cli.common.errors import guarded, warnings_as_notes
from iosched.cli.common.log_file import WORDS, logged
from iosched.cli.common.options import verbosity_options


def version_text() -> str:
    """One line; its second word is the package version."""
    from iosched.models.version import iosched_version
    from iosched.runtime.device import compiled_executor

    compiled = compiled_executor()
    executor = "executor in Python" if compiled is None else f"compiled executor {compiled.partition(' ')[0]}"
    system = f"{platform.system()} {platform.machine()}".strip()
    return f"iosched {iosched_version()} ({executor}; Python {platform.python_version()}; {system})"


def print_version(ctx: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    """Click callback of `--version`."""
    if not is_wanted or ctx.resilient_parsing:
        return
    click.echo(version_text())
    ctx.exit()


COMMANDS = {
    "optimize": "getting-started.md#optimize-a-model",
    "batch": "batching.md",
    "run": "getting-started.md#run-it",
    "export": "serving.md#export-a-plan",
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
"""Commands, each with its guide in docs/."""


class LazyGroup(click.Group):
    """A group that imports a command's file on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `iosched.cli.NAME` and return its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"iosched.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the closest command for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" There are: {', '.join(COMMANDS)}."
            raise click.UsageError(error.message + hint, ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command's name, and keep all words for the log and for results."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the command line; `--help` and `--version` may meet a closed pipe here."""
        with guarded():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and turn exceptions into exit codes."""
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
    """Entry point of the `iosched` script, also called for shell completion."""
    _replace_closed_streams()
    if VARIABLE in os.environ:
        register_completions()
    cli(prog_name="iosched")


def _replace_closed_streams() -> None:
    """Open /dev/null for standard streams that are closed (`iosched ... >&-`).

    Otherwise the next opened file, such as the profile database, gets the stream's number, and output of libraries is
    written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
