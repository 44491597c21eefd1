"""`iosched completion`: print a shell's completion script."""

from __future__ import annotations

import click

from iosched.cli.common.complete import VARIABLE, register_completions
from iosched.cli.common.options import verbosity_options
from iosched.cli.help import Command

_SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion", cls=Command, short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@verbosity_options
def command(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, files, bundled networks and devices.

    \b
    In ~/.bashrc:                       eval "$(iosched completion bash)"
    In ~/.zshrc, after compinit:        eval "$(iosched completion zsh)"
    In ~/.config/fish/config.fish:      iosched completion fish | source
    """
    from click.shell_completion import get_completion_class

    register_completions()
    made = get_completion_class(shell)
    assert made is not None  # click has all three
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "iosched", VARIABLE).source())
