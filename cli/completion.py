"""`iosched completion`: the script that lets a shell complete words."""

from __future__ import annotations

import click

from iosched.cli.complete import VARIABLE, use_in_shells
from iosched.cli.options import verbosity_options

_SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion", short_help="Print the script that lets a shell complete words.")
@click.argument("shell", type=click.Choice(_SHELLS))
@verbosity_options
def command(shell: str) -> None:
    """Print the script that has SHELL complete commands, options, files, networks of the zoo and devices.

    \b
    In ~/.bashrc:                       eval "$(iosched completion bash)"
    In ~/.zshrc, behind compinit:       eval "$(iosched completion zsh)"
    In ~/.config/fish/config.fish:      iosched completion fish | source
    """
    from click.shell_completion import get_completion_class

    use_in_shells()
    made = get_completion_class(shell)
    assert made is not None  # click has all three
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "iosched", VARIABLE).source())
