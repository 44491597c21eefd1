"""Writes docs/cli.md: `python -m iosched.cli.reference > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from iosched.cli.main import cli

_HEAD = """# Command line reference

This page is what `--help` prints. See [JSON output](json.md) for the keys of `--json` and
[exit codes](exit-codes.md) for what a command returns.
"""
_COLUMNS = 100


def commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below `command`, itself first, with the words that call it."""
    yield ctx.command_path, command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from commands(below, _context(below, name, ctx))


def reference() -> str:
    """The text of docs/cli.md."""
    sections = [
        f"## {path}\n\n```text\n{command.get_help(ctx).rstrip()}\n```\n"
        for path, command, ctx in commands(cli, _context(cli, "iosched", None))
    ]
    return "\n".join([_HEAD, *sections])


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    # Fixed width: the page must not depend on the terminal it was made in.
    return click.Context(
        command,
        parent=parent,
        info_name=name,
        terminal_width=_COLUMNS,
        max_content_width=_COLUMNS,
        help_option_names=["-h", "--help"],
    )


if __name__ == "__main__":
    click.echo(reference(), nl=False)
