"""Searches that are killed at any moment, and while they measure.

A killed search may lose the current measurement, but nothing that it has stored. Its outputs are complete or absent,
and the next search continues.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fuzz_children as children
import numpy as np
import onnx
from fuzz import write_model
from fuzz_corpus import Seed, model_of
from onnx import TensorProto, helper, numpy_helper


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
    """Measurements of stages in a database, by signature and turn; None if SQLite finds it damaged."""
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


KILLS = 200
SEED = 18
_SECONDS_OF_KILLS = 200.0
_MEASURING_S = 3.0
_NEVER = 2**62
_OUTPUTS = ("-o", "out.onnx", "--schedule", "out.json", "--json")
_SHORT = ("optimize", "m.onnx", "--threads", "2", "--budget", "0.8", *_OUTPUTS)
_LONG = ("optimize", "m.onnx", "--threads", "2", *_OUTPUTS)
_PHASES = {"began": "while something was measured", "measured": "while it was kept", "kept": "in between"}


@dataclass(frozen=True)
class Notes:
    """A search's log of its measurements: a line when one starts, ends, or is stored.

    Attributes:
        lines: the event, and the measurement that was stored.
    """

    lines: tuple[tuple[str, str], ...]

    @staticmethod
    def of(path: Path) -> Notes:
        text = path.read_text() if path.exists() else ""
        return Notes(tuple((what, key) for what, _, key in (line.partition(" ") for line in text.splitlines())))

    @property
    def kept(self) -> frozenset[str]:
        return frozenset(key for what, key in self.lines if what == "kept")

    def count(self, event: str) -> int:
        return sum(what == event for what, _ in self.lines)


def kills(quick: bool, before: Mapping[str, Any]) -> dict[str, Any]:
    """Kills a search at random moments.

    Half of the moments are drawn from the time that the search takes, half from around its measurements. Resumes
    those of an earlier call for some minutes.
    """
    done, end = before.get("kills", 0), time.monotonic() + _SECONDS_OF_KILLS
    whole_s, lines = _whole_search()
    counts = Counter(before.get("counts", {}))
    while done < (4 if quick else KILLS) and time.monotonic() < end:
        random = Random(f"{SEED} {done}")
        if done % 2:
            counts.update(_killed(_SHORT, kill_after_s=random.uniform(0.0, 1.1 * whole_s)))
        else:
            moment = (random.randint(1, lines), random.uniform(0.0, 0.01))
            counts.update(_killed(_SHORT, moment))
        done += 1
    return {"kills": done, "search_s": round(whole_s, 2), "counts": dict(counts)}


def amid(quick: bool, before: Mapping[str, Any]) -> dict[str, Any]:
    """Kills a search while it measures, and resumes it by a second one.

    The model has hundreds of stages to measure, and each moment is drawn from the first seconds after the first
    measurement began. Resumes those of an earlier call.
    """
    done, end = before.get("kills", 0), time.monotonic() + _SECONDS_OF_KILLS
    counts, model = Counter(before.get("counts", {})), _many_stages()
    while done < (2 if quick else KILLS) and time.monotonic() < end:
        moment = (1, Random(f"{SEED} amid {done}").uniform(0.0, _MEASURING_S))
        counts.update(_killed(_LONG, moment, model=model, goes_on=True))
        done += 1
    return {"kills": done, "within_s": _MEASURING_S, "counts": dict(counts)}


def _many_stages() -> onnx.ModelProto:
    """Six blocks of four concurrent, distinct convolutions: hundreds of stages to measure."""
    random, channels, source = np.random.default_rng(18), 8, "x"
    nodes, weights = [], []
    for block in range(6):
        sizes = [8 + 4 * ((block + branch) % 5) + block for branch in range(4)]
        for branch, (kernel, results) in enumerate(zip((1, 3, 3, 5), sizes, strict=True)):
            name = f"{block}{branch}"
            values = random.standard_normal((results, channels, kernel, kernel)).astype(np.float32) / 100
            weights.append(numpy_helper.from_array(values, f"w{name}"))
            nodes.append(helper.make_node("Conv", [source, f"w{name}"], [f"c{name}"], pads=[kernel // 2] * 4))
        nodes.append(helper.make_node("Concat", [f"c{block}{branch}" for branch in range(4)], [f"y{block}"], axis=1))
        source, channels = f"y{block}", sum(sizes)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 8, 14, 14]), (source, None)))
    graph = helper.make_graph(nodes, "many", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _whole_search() -> tuple[float, int]:
    """The seconds of a search, and the lines of its log."""
    with sandbox("whole") as folders:
        path, start = folders.root / "measured", time.monotonic()
        ending = children.run(_SHORT, folders, prepare=partial(_note_measurements, path, _NEVER, 0.0))
        assert ending.code == 0, ending.stderr
        return time.monotonic() - start, len(Notes.of(path).lines)


def _killed(
    words: tuple[str, ...],
    moment: tuple[int, float] = (_NEVER, 0.0),
    *,
    kill_after_s: float = children.MAX_SECONDS,
    model: onnx.ModelProto | None = None,
    goes_on: bool = False,
) -> Iterator[str]:
    """Kills a search and returns what is left of it.

    Args:
        moment: the number of a line of its log, and seconds after it.
        kill_after_s: seconds after its start.
        model: to search; a small one by default.
        goes_on: whether a second search resumes it.
    """
    with sandbox("killed", model) as folders:
        path = folders.root / "measured"
        prepare = partial(_note_measurements, path, *moment)
        ending = children.run(words, folders, prepare=prepare, kill_after_s=kill_after_s)
        notes = Notes.of(path)
        yield from _left(folders, notes, ending)
        if goes_on and ending.code < 0:
            yield f"killed {_PHASES[notes.lines[-1][0]]}"
            yield from _second_search(folders, notes.kept)


def _note_measurements(path: Path, last: int, delay_s: float) -> None:
    """Makes the search log each stage that it measures and stores.

    It is killed some time after line number `last`, by an alarm of the kernel, which ends a process like SIGKILL:
    nothing handles it, and no Python thread has to run first.
    """
    from iosched.profiler.devices.cpu import measured_cost as cost
    from iosched.profiler.store.database import ProfileDatabase

    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    measure, keep = cost.measure, ProfileDatabase.keep_stage
    lines = 0

    def note(what: str, key: str = "") -> None:
        nonlocal lines
        os.write(file, f"{what} {key}\n".encode())
        lines += 1
        if lines == last:
            signal.setitimer(signal.ITIMER_REAL, max(delay_s, 1e-6))

    def measured(*given: Any, **named: Any) -> Any:
        note("began")
        found = measure(*given, **named)
        note("measured")
        return found

    def kept(self: Any, signature: str, device: str, found: Any, turn: str = "first") -> None:
        keep(self, signature, device, found, turn)  # type: ignore[arg-type]
        note("kept", f"{signature} {turn}")

    cost.measure = measured  # type: ignore[assignment]
    ProfileDatabase.keep_stage = kept  # type: ignore[assignment,method-assign]


def _left(folders: children.Sandbox, notes: Notes, ending: children.Ending) -> Iterator[str]:
    yield "killed" if ending.code < 0 else f"ended by itself with {ending.code}"
    rows = stage_keys(folders.profile)
    yield from ("measurements that were kept" for _ in range(notes.count("kept")))
    yield "databases that are sound" if rows is not None else "databases that are DAMAGED"
    if notes.kept - (rows or frozenset()):
        yield "databases that LOST what was kept"
    if notes.count("measured") - notes.count("kept") > 1:
        yield "searches that LOST more than one measurement"
    yield from whole_or_absent(folders.work / "out.onnx", is_model)
    yield from whole_or_absent(folders.work / "out.json", is_schedule)
    left = [path.name for path in folders.work.iterdir() if path.suffix == ".tmp"]
    yield from ("temporary files left in the working folder" for _ in left)
    yield from ("temporary folders left in TMPDIR" for _ in (folders.root / "tmp").glob("iosched-*"))


def _second_search(folders: children.Sandbox, kept: frozenset[str]) -> Iterator[str]:
    """The outcome of a search after one that was killed."""
    ending = children.run(_SHORT, folders)
    if ending.code or ending.faults():
        yield "second searches that FAILED"
        return
    yield "second searches that went on"
    if kept - (stage_keys(folders.profile) or frozenset()):
        yield "second searches that LOST what was kept"
    found = json.loads((folders.root / "stdout").read_text())["search"]["cache_hits"]
    yield from ("measurements that a second search took over" for _ in range(found))
    yield from whole_or_absent(folders.work / "out.onnx", is_model)
