"""A command that takes arguments of its own, and has further commands below it."""

from __future__ import annotations

from typing import Any

import click


class WithFurther(click.Group):
    """Does its own work, unless its first word is the name of a further command; an argument may not be called so."""

    allow_extra_args = False
    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the words of this command, or of the one that the first word names."""
        further = self.commands.get(args[0]) if args else None
        if further is None:
            return click.Command.make_context(self, info_name, args, parent, **extra)
        return further.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the words as those of a command."""
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Does its own work."""
        return click.Command.invoke(self, ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """How it is called when no further command is."""
        return click.Command.collect_usage_pieces(self, ctx)
