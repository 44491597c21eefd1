"""`iosched devices`: what this machine can run on, and what is missing for the rest."""

from __future__ import annotations

import click

from iosched.cli.cluster import refuse_cluster
from iosched.cli.help import Command
from iosched.cli.options import cluster_option, json_option, verbosity_options
from iosched.cli.output import emit_json
from iosched.cli.tables import print_pairs
from iosched.models.errors import UsageError


@click.command(name="devices", cls=Command, short_help="List devices, and what is missing to use them.")
@click.option(
    "--selftest",
    "tries",
    is_flag=True,
    help="Test a device, and report in one line what works.\n\nEach kernel, cuDNN plans, a captured graph and a small "
    "network are compared with reference results. Exit 4 if only numbers differ, 1 if a check fails otherwise.",
)
@click.option("--device", metavar="DEVICE", help="Device that --selftest tests: cuda[:N] or cpu.  [default: cuda]")
@cluster_option("List the devices of a Ray cluster and their problems instead.")
@json_option
@verbosity_options
def command(tries: bool, device: str | None, cluster: str | None, as_json: bool) -> None:
    """List the devices of this machine, what is missing to use them, and the GPUs that can be simulated."""
    if tries or device is not None:
        refuse_cluster(cluster, "--selftest tries a device of this machine")
    elif cluster is not None:
        from iosched.cli.devices_cluster import print_cluster

        print_cluster(cluster, as_json=as_json)
        return
    if tries:
        from iosched.cli.selftest import print_selftest

        print_selftest(device or "cuda", as_json=as_json)
        return
    if device is not None:
        raise UsageError("--device says what --selftest tries: give --selftest too")
    from iosched.profiler.devices.gpus import known_gpus
    from iosched.profiler.devices.resolve import facts_here

    found, plannable = facts_here(), known_gpus()
    if as_json:
        named = [{"device": gpu.key, "name": gpu.name} for gpu in plannable]
        emit_json({"devices": [dict(facts.values) for facts in found], "plannable": named})
        return
    for facts in found:
        print_pairs(facts.kind, facts.rows, to_stderr=False)
    rows = [(gpu.key, gpu.name) for gpu in plannable]
    print_pairs("can be planned for without being here: optimize --device NAME", rows, to_stderr=False)
