"""`iosched zoo`: bundled benchmark networks."""

from __future__ import annotations

from pathlib import Path

import click

from iosched.cli.common.complete import complete_network
from iosched.cli.common.options import json_option, output_option, verbosity_options
from iosched.cli.common.output import Destination, check_destinations, emit_json, refuse_terminal, write_and_note
from iosched.cli.help import Group


@click.group(name="zoo", cls=Group, short_help="List the bundled networks, or export one as ONNX.")
@verbosity_options
def command() -> None:
    """Bundled benchmark networks, with seeded weights.

    'zoo:NAME' works wherever MODEL is taken.
    """


@command.command(name="list")
@json_option
@verbosity_options
def list_(as_json: bool) -> None:
    """Print the names of the bundled networks, one on each line."""
    from iosched.models import zoo

    if as_json:
        emit_json({"networks": list(zoo.names())})
        return
    for name in zoo.names():
        click.echo(name)


@command.command()
@click.argument("name", shell_complete=complete_network)
@output_option(
    "-o",
    "--output",
    metavar="F",
    text="Model to write; '-' is stdout. Default: NAME.onnx.",
)
@verbosity_options
def export(name: str, output: Destination | None) -> None:
    """Write the network NAME as an ONNX file."""
    from iosched.models import zoo

    check_destinations([output])
    refuse_terminal(output)
    proto = zoo.build(name)
    if output is None:  # the network exists, so its name is a file name
        output = Destination("-o", Path(f"{name}.onnx"))
        check_destinations([output])
    write_and_note(output, proto.SerializeToString())
