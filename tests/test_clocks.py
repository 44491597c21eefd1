"""Durations come from monotonic clocks; the wall clock is for dates, and between processes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("api", "models", "scheduler", "runtime", "profiler", "jobs", "cli")
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.(now|utcnow|today)\b|\bdate\.today\b")
DATES = {
    "jobs/exploring/study.py",  # the last sign of life of another process on a trial
    "jobs/provenance.py",  # when a result was made
    "jobs/optimizing/whole_models.py",  # when a model was measured
    "profiler/store/database.py",  # likewise
}


def test_only_dates_come_from_the_wall_clock() -> None:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert {str(path.relative_to(ROOT)) for path in files if WALL_CLOCK.search(path.read_text())} == DATES
