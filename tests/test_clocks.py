"""Durations come from clocks that do not jump; the clock of the day is for dates, and between processes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("api", "models", "scheduler", "runtime", "profiler", "jobs", "cli")
OF_THE_DAY = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.(now|utcnow|today)\b|\bdate\.today\b")
DATES = {
    "jobs/exploring/study.py",  # when another process last said that it works on a trial
    "jobs/provenance.py",  # when a result was made
    "jobs/optimizing/whole_models.py",  # when a model was measured
    "profiler/store/database.py",  # likewise
}


def test_only_dates_are_taken_from_the_clock_of_the_day() -> None:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert {str(path.relative_to(ROOT)) for path in files if OF_THE_DAY.search(path.read_text())} == DATES
