"""The folders in which commands are failed, and what is looked at there afterwards."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import fuzz_children as children
import onnx
from fuzz import write_model
from fuzz_corpus import Seed, model_of


@contextmanager
def sandbox(name: str, model: onnx.ModelProto | None = None) -> Iterator[children.Sandbox]:
    """A sandbox with a model in `m.onnx`, a small one by default."""
    proto = model_of("separable") if model is None else model
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        made = children.Sandbox(Path(folder) / name)
        made.work.mkdir(parents=True)
        write_model(made.work / "m.onnx", Seed("m", proto.SerializeToString()))
        yield made


def stage_keys(path: Path) -> frozenset[str] | None:
    """Measurements of stages in a database, by signature and turn; None where SQLite finds it damaged."""
    if not path.exists():
        return frozenset()
    with closing(sqlite3.connect(path)) as connection:
        try:
            if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                return None
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stage'").fetchone():
                return frozenset()
            return frozenset(f"{key} {turn}" for key, turn in connection.execute("SELECT signature, turn FROM stage"))
        except sqlite3.DatabaseError:
            return None


def whole_or_absent(path: Path, is_whole: Callable[[Path], bool]) -> Iterator[str]:
    if path.exists():
        yield "output files that are whole" if is_whole(path) else "output files that are HALF WRITTEN"


def is_model(path: Path) -> bool:
    from iosched.models.load import load_model

    return load_model(path).schedule_json is not None


def is_schedule(path: Path) -> bool:
    from iosched.scheduler.document import ScheduleDocument

    return bool(ScheduleDocument.from_json(path.read_text()).schedule.blocks)
