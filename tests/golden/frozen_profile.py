"""A profile of this machine's CPU with made-up latencies, so that two trees that read it decide the same.

Started with the Python of the tree before: python frozen_profile.py FOLDER. Writes FOLDER/frozen.jsonl, a `profile
export`. The keys of rows are those that the tree asks for: it measures every stage of `MODELS`, then compares whole
models by the stages that were made up, until a call measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODELS = ("model.onnx", "small.onnx", "light_squeezenet.onnx")
_ROUNDS = 6
_MOST_CALLS = 8  # a comparison with interference is discarded and repeated


def main(folder: Path) -> None:
    """Measures and makes up rows until a call adds none."""
    known = ""
    for call in range(_MOST_CALLS):
        database = folder / f"frozen{call}.db"
        if known:
            (folder / "frozen.jsonl").write_text(known)
            iosched(folder, "profile", "import", "frozen.jsonl", "--profile-db", database.name)
        for model in MODELS:
            iosched(
                folder, "optimize", model, "--device", "cpu", "--threads", "2", "--profile-db", database.name,
                "-o", "frozen.onnx", "--schedule", "frozen.json", *(() if call else ("--exhaustive",)),
            )  # fmt: skip
        now = "".join(sorted(made_up(iosched(folder, "profile", "export", "-", "--profile-db", database.name))))
        for path in folder.glob("frozen*.db*"):
            path.unlink()
        if now == known:
            break
        known = now
    else:
        sys.exit(f"call {_MOST_CALLS} on one profile still measured: other processes disturb the comparisons")
    (folder / "frozen.onnx").unlink()
    (folder / "frozen.json").unlink()


def iosched(folder: Path, *words: str) -> str:
    """Runs a command and returns its stdout."""
    command = [sys.executable, "-m", "iosched", *words, "-q"]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def made_up(text: str) -> Iterator[str]:
    """The rows of an export with latencies that follow from their keys: quiet, and different enough to decide."""
    rows = [json.loads(line) for line in text.splitlines()]
    sessions = sorted({row["measured_at"] for row in rows if row["table"] == "comparison"})
    for row in rows:
        session = sessions.index(row["measured_at"]) if row["table"] == "comparison" else 0
        row["measured_at"] = f"2026-01-01T00:{session:02d}:00Z"
        for load in ("disturbed_by", "others", "stolen", "slowness"):
            row.pop(load, None)
        if row["table"] == "stage":
            base = 0.01 + 0.09 * share(row["signature"])
            for turn in ("first", "again"):
                if row["samples_us"]:
                    row["samples_us"] = samples(base)
                yield json.dumps({**row, "turn": turn}, sort_keys=True) + "\n"
            continue
        if row["table"] == "comparison":
            base = 1500.0 if row.get("setting") else 500 + 500 * share(row["candidate"])
            row["samples_us"] = samples(base, len(row["samples_us"]))
            row["rested_us"] = samples(base, len(row.get("rested_us", ())))
        yield json.dumps(row, sort_keys=True) + "\n"


def share(key: str) -> float:
    """A number from 0 to 1 that follows from the key."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) / 2**32


def samples(base: float, count: int = _ROUNDS) -> list[float]:
    return [base * (1 + 0.0001 * (number % 3)) for number in range(count)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
