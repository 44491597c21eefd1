"""The file that results of `gpu.py` go to: written after every step, never half, and read again by the next call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_cases import Case, key_of
from testbed import keep_results

FORMAT, VERSION = "iosched.gpu-benchmark", 1
MOST_ATTEMPTS = 3
"""How often a case is begun that does not come to its end."""

Record = Mapping[str, Any]


class ResultsError(Exception):
    """The file is not one of these, or the results are of another GPU; the text says what to do."""


@dataclass(frozen=True, eq=False)
class Results:
    """What was measured so far, by the keys of the cases.

    An entry has "state" ("begun", "done", "partial" where some of it was measured, "failed"), "attempts", "reasons"
    (why each attempt ended that did not come to its end) and "found", what was measured.
    """

    path: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    now: Callable[[], float] = time.time

    @property
    def gpu(self) -> str:
        """The GPU that all of them were measured on; empty as long as there is none."""
        return next((found["gpu"] for found in self._found() if found.get("gpu")), "")

    def _found(self) -> list[Record]:
        return [entry["found"] for entry in self.cases.values() if entry.get("found")]

    def missing(self, cases: Sequence[Case]) -> list[Case]:
        """Those that are not done and may be begun once more.

        Those that were begun most seldom come first: one that ended its process, or the whole call, is not in the way
        of the others. Among equals the order is kept.
        """
        left = [case for case in cases if self.state(case) != "done" and self.attempts(case) < MOST_ATTEMPTS]
        return sorted(left, key=self.attempts)

    def state(self, case: Case) -> str:
        """How far the case came; empty where it was never begun."""
        return str(self.cases.get(key_of(case), {}).get("state", ""))

    def attempts(self, case: Case) -> int:
        """How often the case was begun."""
        return int(self.cases.get(key_of(case), {}).get("attempts", 0))

    def begin(self, case: Case) -> None:
        """Notes that the case is being measured, so that the next call knows if this one never returns."""
        entry = self.cases.setdefault(key_of(case), {"attempts": 0, "reasons": [], "found": None})
        entry |= {"state": "begun", "attempts": entry["attempts"] + 1, "begun_at": round(self.now())}
        self.write()

    def keep(self, case: Case, found: Record) -> None:
        """Keeps what was measured; nothing of an earlier attempt that came to its end is lost to one that did not."""
        entry = self.cases[key_of(case)]
        if found.get("complete") or not (entry["found"] or {}).get("complete"):
            entry["found"] = dict(found)
        self.write()

    def end(self, case: Case, reason: str) -> None:
        """Notes how the attempt ended: `reason` is empty if it came to its end."""
        entry = self.cases[key_of(case)]
        found = entry["found"] or {}
        if reason:
            entry["reasons"] = [*entry["reasons"], reason]
        entry["state"] = "done" if found.get("complete") else "partial" if found else "failed"
        self.write()

    def forget(self, case: Case) -> None:
        """Takes the last `begin` back: the case could not be begun at all."""
        entry = self.cases[key_of(case)]
        entry["attempts"] -= 1
        if entry["attempts"] == 0 and not entry["found"]:
            del self.cases[key_of(case)]
        else:
            self.end(case, "")
        self.write()

    def again(self, cases: Sequence[Case]) -> None:
        """Lets these be measured again; what they have stays until there is something better."""
        for case in cases:
            if entry := self.cases.get(key_of(case)):
                entry |= {"attempts": 0, "state": "partial" if entry["found"] else "failed"}

    def write(self) -> None:
        """Writes all of it, with where it comes from."""
        content = {"format": FORMAT, "version": VERSION, "cases": self.cases}
        keep_results(self.path, content, rivals=("torch",), goes_on=True)


def load_results(path: Path) -> Results:
    """The results in a file; none where there is no file.

    Raises:
        ResultsError: the file holds something else.
    """
    if not path.exists():
        return Results(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise KeyError("format")
        return Results(path, dict(content["cases"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} is no file of results of this script: give another one with -o") from error
