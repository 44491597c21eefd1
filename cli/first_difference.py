"""The first operator that differs, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.jobs.locating.difference import FirstDifference


def difference_object(found: FirstDifference | None) -> dict[str, object] | None:
    """The object "first_difference" of commands; scripts rely on its keys."""
    if found is None:
        return None
    return {
        "operator": found.operator,
        "type": found.type,
        "unseen": list(found.unseen),
        "place": None if found.place is None else asdict(found.place),
        "max_abs": found.max_abs,
        "max_rel": found.max_rel,
        "inputs_max_rel": found.inputs_max_rel,
        "reason": found.reason,
        "cause": found.cause,
        "vanishes": found.vanishes,
        "complete": found.is_complete,
        "looks": found.looks,
    }
