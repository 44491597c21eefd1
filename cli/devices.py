"""`iosched devices`: list the devices of this machine or a cluster and their problems, and test one."""

from __future__ import annotations

import traceback
from contextlib import closing
from typing import TYPE_CHECKING

import click

from iosched.cli.cluster_display import refuse_cluster
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import cluster_option, json_option, verbosity_options
from iosched.cli.common.output import debugging, emit_json, note, quiet, say
from iosched.cli.common.tables import print_pairs
from iosched.cli.help import Command
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.pool.survey import Surveyed
    from iosched.jobs.selftest import CheckResult, SelfTest
    from iosched.runtime.reference import SelfCheck

_PLACE = """
node=place.node address=place.address device=place.device count=place.count threads cores=place.cores name=facts.name
versions usable problem
"""
_TIMEOUT_S = 180.0  # for the workers of a cluster


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
        refuse_cluster(cluster, "--selftest tests a device of this machine")
    elif cluster is not None:
        print_cluster(cluster, as_json=as_json)
        return
    if tries:
        print_selftest(device or "cuda", as_json=as_json)
        return
    if device is not None:
        raise UsageError("--device names what --selftest tests: add --selftest")
    from iosched.profiler.devices.gpus import known_gpus
    from iosched.profiler.devices.resolve import device_facts

    found, plannable = device_facts(), known_gpus()
    if as_json:
        named = [{"device": gpu.key, "name": gpu.name} for gpu in plannable]
        emit_json({"devices": [dict(facts.values) for facts in found], "plannable": named})
        return
    for facts in found:
        print_pairs(facts.kind, facts.rows, to_stderr=False)
    rows = [(gpu.key, gpu.name) for gpu in plannable]
    print_pairs("GPUs that can be simulated: optimize --device NAME", rows, to_stderr=False)


_CHECK = "part name outcome detail seconds"


class _CheckLines:
    """A line on stderr for each check. The name is printed first, because a check may end the process."""

    def began(self, check: SelfCheck) -> None:
        """Print the name."""
        if not quiet():
            click.echo(f"  {check.part}: {check.name} ... ", nl=False, err=True)

    def ended(self, result: CheckResult) -> None:
        """Print the outcome, and the traceback of a failure with --debug."""
        if result.outcome == "not tried":
            note(f"  {result.title} ... not tried")
            return
        word = "ok" if result.outcome == "passed" else "FAILED"
        note(f"{word}, {result.seconds:.1f} s: {result.detail}")
        if result.error is not None and debugging():
            click.echo("".join(traceback.format_exception(result.error)), err=True)


def print_selftest(device: str, *, as_json: bool) -> None:
    """Run all checks of a device and print a summary on stdout.

    Raises:
        UsageError: there is no such device.
        DeviceError: it is not attached, or a package is missing.
        MismatchError: only numerical checks failed.
        ExecutionError: another check failed.
    """
    from iosched.jobs.selftest import selftest

    found = selftest(device, _CheckLines())
    if as_json:
        emit_json(_as_json(found))
    else:
        say(found.summary)
    if found.failure is not None:
        raise found.failure


def _as_json(found: SelfTest) -> dict[str, object]:
    return json_object(
        found,
        "device name passed summary seconds about checks",
        seconds=round(found.seconds, 3),
        checks=[json_object(each, _CHECK, seconds=round(each.seconds, 3)) for each in found.results],
    )


def print_cluster(text: str, *, as_json: bool) -> None:
    """Prints the devices of the cluster in `--cluster`.

    Raises:
        UsageError: the text is not a cluster, or is a local one with more workers than processors.
        DeviceError: Ray is not installed, or there is no such cluster.
    """
    from iosched.jobs.pool.ray.address import parse_cluster
    from iosched.jobs.pool.ray.ray_transport import RayTransport
    from iosched.jobs.pool.survey import survey

    cluster = parse_cluster(text)
    with closing(RayTransport(cluster)) as transport:
        found = survey(transport, _TIMEOUT_S)
    if as_json:
        emit_json({"cluster": str(cluster), "devices": [_place_json(each) for each in found]})
        return
    for node in dict.fromkeys(each.place.node for each in found):
        there = [each for each in found if each.place.node == node]
        rows = [(each.place.device, _place_text(each)) for each in there]
        print_pairs(f"{node} ({there[0].place.address})", rows, to_stderr=False)


def _place_text(each: Surveyed) -> str:
    if each.facts is None:
        return f"not usable: {each.problem}"
    versions = ", ".join(f"{name} {version}" for name, version in each.facts.versions.items())
    count = f"{each.place.count} of " if each.place.count > 1 else ""
    bound = f", on processors {', '.join(map(str, each.place.cores))}" if each.place.cores else ""
    usable = f"not usable: {each.problem}; " if each.problem else ""
    noisy = f"; its machine is noisy: {each.facts.disturbed_by[-1]}" if each.facts.disturbed_by else ""
    threads = f"{each.facts.threads} thread{'s' if each.facts.threads != 1 else ''}"
    return f"{usable}{count}{each.facts.name}, {threads}{bound}; {versions}{noisy}"


def _place_json(each: Surveyed) -> dict[str, object]:
    facts = each.facts
    return json_object(
        each,
        _PLACE,
        threads=each.place.threads if facts is None else facts.threads,
        versions={} if facts is None else facts.versions,
        usable=not each.problem,
        problem=each.problem or None,
    )
