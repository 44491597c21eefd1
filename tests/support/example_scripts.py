"""Runs the scripts in `examples/` as a user does, in a separate folder."""

from __future__ import annotations

import os
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def environment() -> dict[str, str]:
    """The environment for a process, with a profile database that is gone afterwards, and few threads."""
    return {**os.environ, "IOSCHED_PROFILE_DB": ":memory:", "OMP_NUM_THREADS": "1"}
