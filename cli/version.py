"""`iosched --version`: of the package, and of the compiled executor, which may be of another one or missing."""

from __future__ import annotations

import platform

import click


def version_text() -> str:
    """One line; its second word is the version of the package, as ever."""
    from iosched.models.version import iosched_version
    from iosched.runtime.compiled import compiled_executor

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
