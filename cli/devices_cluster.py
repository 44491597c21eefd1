"""`iosched devices --cluster`: what the machines of a cluster can run on, and what is in the way."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from iosched.cli.common.json_objects import json_object
from iosched.cli.common.output import emit_json
from iosched.cli.common.tables import print_pairs

if TYPE_CHECKING:
    from iosched.jobs.pool.survey import Surveyed

_OBJECT = """
node=place.node address=place.address device=place.device count=place.count threads cores=place.cores name=facts.name
versions usable problem
"""
_PATIENCE_S = 180.0


def print_cluster(text: str, *, as_json: bool) -> None:
    """Prints what the cluster that `--cluster` names has.

    Raises:
        UsageError: the text names none, or a local one of more workers than there are processors.
        DeviceError: Ray is not installed, or there is no such cluster.
    """
    from iosched.jobs.pool.ray.address import parse_cluster
    from iosched.jobs.pool.ray.transport import RayTransport
    from iosched.jobs.pool.survey import survey

    cluster = parse_cluster(text)
    with closing(RayTransport(cluster)) as transport:
        found = survey(transport, _PATIENCE_S)
    if as_json:
        emit_json({"cluster": str(cluster), "devices": [_plain(each) for each in found]})
        return
    for node in dict.fromkeys(each.place.node for each in found):
        there = [each for each in found if each.place.node == node]
        rows = [(each.place.device, _line(each)) for each in there]
        print_pairs(f"{node} ({there[0].place.address})", rows, to_stderr=False)


def _line(each: Surveyed) -> str:
    if each.facts is None:
        return f"not usable: {each.problem}"
    versions = ", ".join(f"{name} {version}" for name, version in each.facts.versions.items())
    count = f"{each.place.count} of " if each.place.count > 1 else ""
    bound = f", on processors {', '.join(map(str, each.place.cores))}" if each.place.cores else ""
    usable = f"not usable: {each.problem}; " if each.problem else ""
    noisy = f"; its machine is noisy: {each.facts.disturbed_by[-1]}" if each.facts.disturbed_by else ""
    threads = f"{each.facts.threads} thread{'s' if each.facts.threads != 1 else ''}"
    return f"{usable}{count}{each.facts.name}, {threads}{bound}; {versions}{noisy}"


def _plain(each: Surveyed) -> dict[str, object]:
    facts = each.facts
    return json_object(
        each,
        _OBJECT,
        threads=each.place.threads if facts is None else facts.threads,
        versions={} if facts is None else facts.versions,
        usable=not each.problem,
        problem=each.problem or None,
    )
