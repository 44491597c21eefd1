"""The devices, as `iosched devices` shows them; what is wrong with one is said by its kind."""

from __future__ import annotations

from iosched.jobs.doctor.section import Asked, Section
from iosched.profiler.devices.resolve import facts_here


def look(asked: Asked) -> Section:
    """Facts about each kind of device on this machine."""
    del asked
    found = facts_here()
    rows = tuple((f"{facts.kind}: {label}", text) for facts in found for label, text in facts.rows)
    findings = tuple(each for facts in found for each in facts.findings)
    return Section({"devices": [dict(facts.values) for facts in found]}, rows, findings)
