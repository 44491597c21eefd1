"""Moves profiles between machines: a line of JSON for each row of the profile database.

"table" names the row's table; the rest are its columns (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from iosched.models.errors import UsageError
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row, values_of

LONGEST_LINE = 2**24
"""Characters of a line at most; a row with a thousand samples has some twenty thousand."""


def export_lines(database: ProfileDatabase) -> Iterator[str]:
    """Every row of the database but cuDNN plans, as one line of JSON, in the order of `ProfileDatabase.rows`."""
    return (msgspec.json.encode(row).decode() for row in database.rows())


def import_lines(database: ProfileDatabase, lines: Iterable[str]) -> int:
    """Adds the rows of `export_lines`, all or none; returns how many were added or replaced an older one.

    Of two measurements the newer one stays; of two choices the local one. Raises a UsageError for a line that is no
    row.
    """
    return database.merge([_parsed(number, line) for number, line in enumerate(lines, 1) if line.strip()])


def _parsed(number: int, line: str) -> Row:
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"it is longer than {LONGEST_LINE:,} characters")
        row: Row = msgspec.json.decode(line, type=Row)
        values_of(row)  # refuses what SQLite cannot keep, such as a time that is in no year of UTC
        return row
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"line {number} is not a row of an iosched profile ({error}); nothing was imported.\n"
            "Use a file that 'iosched profile export' wrote."
        ) from error
