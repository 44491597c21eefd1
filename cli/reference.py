"""Write docs/cli/, a page for each command: `python -m iosched.cli.reference` in the repository's top folder."""

from __future__ import annotations

import html
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from iosched.cli.help import SHOWS_ALL
from iosched.cli.main import COMMANDS, cli

FOLDER = Path("docs", "cli")

_HEAD = """# Command line

A page for each command, made from its help, with all options. `--help` leaves some of them out, and `--help-all` shows
them. [JSON output](../json.md) has the keys of `--json`, [exit codes](../exit-codes.md) what a command returns, and
[settings for all calls](../site-settings.md) what may be set once.

| command | does |
|---|---|
"""


def pages() -> dict[str, str]:
    """Texts of the files of docs/cli/ by name."""
    top = _context(cli, "iosched", None)
    below = {name: each for name in cli.list_commands(top) if (each := cli.get_command(top, name)) is not None}
    rows = [f"| [iosched {name}]({name}.md) | {_prose(each.get_short_help_str(200))} |" for name, each in below.items()]
    index = "\n".join([_HEAD + "\n".join(rows), "", "## iosched", "", *_section(cli, top)])
    written = {name: _page(name, each, _context(each, name, top)) for name, each in below.items()}
    return {"README.md": index, **{f"{name}.md": text for name, text in written.items()}}


def commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """All commands below `command` and itself, with the words that call them."""
    yield ctx.command_path, command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from commands(below, _context(below, name, ctx))


def _page(name: str, command: click.Command, ctx: click.Context) -> str:
    lines: list[str] = []
    for path, each, its in commands(command, ctx):
        lines += [f"{'##' if lines else '#'} {path}", "", *_section(each, its)]
        if each is command:
            lines += [f"More in [a guide](../{COMMANDS[name]}).", ""]
    return "\n".join(lines)


def _section(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Help of one command, with its options as a table."""
    yield from ["```text", command.get_usage(ctx).removeprefix("Usage: "), "```", ""]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from [*_paragraph(paragraph), ""]
    yield from ["| option | meaning |", "|---|---|"]
    for option in command.get_params(ctx):
        if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
            flags, text = record
            if isinstance(option.type, click.Choice) and option.metavar is None:
                flags = flags.removesuffix(f" {option.make_metavar(ctx)}")
                text = f"One of {', '.join(option.type.choices)}. {text}"
            yield f"| {_code(flags)} | {_prose(text)} |"
    yield ""


def _paragraph(text: str) -> list[str]:
    """A paragraph of help. After a backspace, lines are kept; a first line with a colon is prose."""
    if not text.startswith("\b"):
        return [_prose(text)]
    heading, *lines = text.removeprefix("\b").strip("\n").splitlines()
    if not heading.endswith(":"):
        heading, lines = "", [heading, *lines]
    above = [_prose(heading), ""] if heading else []
    return [*above, "```text", *inspect.cleandoc("\n".join(lines)).splitlines(), "```"]


def _prose(text: str) -> str:
    """Escaped Markdown, with quoted words as code."""
    words = re.split(r"(?<!\w)'([^']+)'(?!\w)", " ".join(text.split()))
    return "".join(_code(part) if place % 2 else _escaped(part) for place, part in enumerate(words))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*\[\]])", r"\\\1", text).replace("<", "&lt;").replace("|", "&#124;")


def _code(text: str) -> str:
    """Code that may be in a table, whose columns end at bars."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    # Fixed width: the pages must not depend on the terminal they were made in.
    ctx = click.Context(
        command,
        parent=parent,
        info_name=name,
        terminal_width=100,
        max_content_width=100,
        help_option_names=["-h", "--help"],
    )
    ctx.meta[SHOWS_ALL] = True
    return ctx


def main() -> None:
    """Write the pages and remove those of deleted commands."""
    if not FOLDER.parent.is_dir():
        sys.exit(f"there is no folder {FOLDER.parent}: call this at the repository's top")
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for stale in {path.name for path in FOLDER.glob("*.md")} - set(written):
        (FOLDER / stale).unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
