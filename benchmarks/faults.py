"""What iosched does when disk, memory, clock and other processes fail it: one kind of fault at a time, counted.

    python benchmarks/faults.py --kind kills memory      # all kinds by default; replaces what was counted of each

Commands run in forked children, as in fuzz.py, on small models. Full disks are limits on the size of files and, where
this process may mount them, small file systems in memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fuzz_children as children
from fuzz import load_everything, versions, write_model
from fuzz_corpus import Seed, model_of
from testbed import keep_results

RESULTS = Path(__file__).parent / "results" / "faults.json"
KILLS = 200
SEED = 18
_SECONDS_OF_KILLS = 200.0
_OUTPUTS = ("-o", "out.onnx", "--schedule", "out.json", "--json")
_QUICK = ("optimize", "m.onnx", "--threads", "2", "--budget", "0.3", *_OUTPUTS)
_LONGER = ("optimize", "m.onnx", "--threads", "2", "--budget", "0.8", *_OUTPUTS)


@contextmanager
def _sandbox(name: str) -> Iterator[children.Sandbox]:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        sandbox = children.Sandbox(Path(folder) / name)
        sandbox.work.mkdir(parents=True)
        write_model(sandbox.work / "m.onnx", Seed("m", model_of("separable").SerializeToString()))
        yield sandbox


def _told(endings: Mapping[str, children.Ending]) -> dict[str, Any]:
    """How commands ended: counts by exit code, what broke the rules, and one line of each."""
    codes = Counter(str(ending.code) for ending in endings.values())
    faults = {name: ending.faults() for name, ending in endings.items() if ending.faults()}
    lines = {name: ending.message.partition("\n")[0] for name, ending in endings.items() if ending.code}
    return {"runs": len(endings), "codes": dict(codes), "faults": faults, "lines": lines}


# --- killed ---------------------------------------------------------------------------------------------------------


def kills(quick: bool, before: Mapping[str, Any]) -> dict[str, Any]:
    """Kills a search at random moments: what it had measured is kept, and outputs are there whole or not at all.

    Half of the moments are drawn from the time that the search takes, half from around its measurements. Goes on after
    those of an earlier call for some minutes.
    """
    done, end = before.get("kills", 0), time.monotonic() + _SECONDS_OF_KILLS
    whole_s, events = _whole_search()
    counts = Counter(before.get("counts", {}))
    while done < (4 if quick else KILLS) and time.monotonic() < end:
        random = Random(f"{SEED} {done}")
        with _sandbox("killed") as sandbox:
            notes = Path(sandbox.root / "measured")
            if done % 2:
                last, after_s, delay_s = 2**62, random.uniform(0.0, 1.1 * whole_s), 0.0
            else:
                last, after_s, delay_s = random.randint(1, events), children.MAX_SECONDS, random.uniform(0.0, 0.01)
            prepare = partial(_note_measurements, notes, last, delay_s)
            ending = children.run(_LONGER, sandbox, prepare=prepare, kill_after_s=after_s)
            counts.update(_after_a_kill(sandbox, notes, ending))
        done += 1
    return {"kills": done, "search_s": round(whole_s, 2), "counts": dict(counts)}


def _whole_search() -> tuple[float, int]:
    """The seconds that a search takes, and how often it measures and keeps something."""
    with _sandbox("whole") as sandbox:
        notes, start = Path(sandbox.root / "measured"), time.monotonic()
        ending = children.run(_LONGER, sandbox, prepare=partial(_note_measurements, notes, 2**62, 0.0))
        assert ending.code == 0, ending.stderr
        return time.monotonic() - start, len(notes.read_bytes())


def _note_measurements(notes: Path, last: int, delay_s: float) -> None:
    """Has the search write a byte for each stage that it has measured, before it keeps it, and one when it is kept.

    It is killed so long after it has written byte number `last`.
    """
    from iosched.profiler.devices.cpu import cost
    from iosched.profiler.store.database import ProfileDatabase

    file = os.open(notes, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    measure, keep = cost.measure, ProfileDatabase.keep_stage

    def note(what: bytes) -> None:
        os.write(file, what)
        if os.fstat(file).st_size == last:
            threading.Timer(delay_s, partial(os.kill, os.getpid(), signal.SIGKILL)).start()

    def measured(*given: Any, **named: Any) -> Any:
        found = measure(*given, **named)
        note(b"m")
        return found

    def kept(*given: Any, **named: Any) -> None:
        keep(*given, **named)
        note(b"k")

    cost.measure = measured  # type: ignore[assignment]
    ProfileDatabase.keep_stage = kept  # type: ignore[assignment,method-assign]


def _after_a_kill(sandbox: children.Sandbox, notes: Path, ending: children.Ending) -> Iterator[str]:
    yield "killed" if ending.code == -signal.SIGKILL else f"ended by itself with {ending.code}"
    said = notes.read_bytes() if notes.exists() else b""
    kept, rows = said.count(b"k"), _stage_rows(sandbox.profile)
    yield from ("measurements that were kept" for _ in range(kept))
    yield "databases that are sound" if rows is not None else "databases that are DAMAGED"
    if (rows or 0) < kept:
        yield "databases that LOST what was kept"
    if said.count(b"m") - kept > 1:
        yield "searches that LOST more than one measurement"
    yield from _whole_or_absent(sandbox.work / "out.onnx", _is_model)
    yield from _whole_or_absent(sandbox.work / "out.json", _is_schedule)
    left = [path.name for path in sandbox.work.iterdir() if path.suffix == ".tmp"]
    yield from ("temporary files left in the working folder" for _ in left)
    yield from ("temporary folders left in TMPDIR" for _ in (sandbox.root / "tmp").glob("iosched-*"))


def _stage_rows(path: Path) -> int | None:
    """Stages in a database; None where SQLite finds it damaged."""
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path)) as connection:
        try:
            if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                return None
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stage'").fetchone():
                return 0
            return int(connection.execute("SELECT COUNT(*) FROM stage").fetchone()[0])
        except sqlite3.DatabaseError:
            return None


def _whole_or_absent(path: Path, is_whole: Callable[[Path], bool]) -> Iterator[str]:
    if path.exists():
        yield "output files that are whole" if is_whole(path) else "output files that are HALF WRITTEN"


def _is_model(path: Path) -> bool:
    from iosched.models.load import load_model

    return load_model(path).schedule_json is not None


def _is_schedule(path: Path) -> bool:
    from iosched.scheduler.document import ScheduleDocument

    return bool(ScheduleDocument.from_json(path.read_text()).schedule.blocks)


# --- memory ---------------------------------------------------------------------------------------------------------


def memory(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Lets a search and a run have so many bytes of memory more than they begin with, and no more."""
    mib = (40, 120) if quick else (*range(0, 64, 4), *range(64, 320, 16), *range(320, 1024, 64))
    return _told({f"{name}, {size} MiB": _limited(words, size) for name, words in _LARGER.items() for size in mib})


_LARGER = {
    "optimize": _QUICK,
    "run": ("run", "m.onnx", "--threads", "2"),
    "scheduled": ("optimize", "m.onnx", "--threads", "2", "--strategy", "greedy", "--budget", "0.05", "-q"),
    "inspect": ("inspect", "m.onnx"),
}


def _limited(words: Sequence[str], mib: int) -> children.Ending:
    with _sandbox("memory") as sandbox:
        return children.run(
            (*words, "--batch-size", "32") if words[0] == "run" else words, sandbox, prepare=partial(_take, mib)
        )


def _take(mib: int) -> None:
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + mib * 2**20, own + mib * 2**20))


# --- disks ----------------------------------------------------------------------------------------------------------


def disk(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Full disks and folders that cannot be written, for outputs, the profile database and temporary files."""
    endings: dict[str, children.Ending] = {}
    for nbytes in (4096,) if quick else (512, 1024, 4096, 8192, 20000, 40000, 60000, 100_000):
        with _sandbox("files") as sandbox:
            endings[f"no file above {nbytes} bytes"] = children.run(_QUICK, sandbox, prepare=partial(_shorten, nbytes))
    for name, words in {
        "-o /dev/full": (*_QUICK[:-5], "-o", "/dev/full"),
        "--output /dev/full": ("run", "m.onnx", "--output", "/dev/full"),
        "zoo export -o /dev/full": ("zoo", "export", "squeezenet", "-o", "/dev/full"),
        "-o in /proc": (*_QUICK[:-5], "-o", "/proc/out.onnx"),
        "database in /proc": (*_QUICK, "--profile-db", "/proc/none/p.sqlite"),
    }.items():
        with _sandbox("files") as sandbox:
            endings[name] = children.run(words, sandbox)
    found = _told({name: _without(ending, "/dev/full", "/proc") for name, ending in endings.items()})
    return found | {"mounted": _told(dict(_mounted()))} if os.geteuid() == 0 and not quick else found


def _without(ending: children.Ending, *places: str) -> children.Ending:
    """The ending, without the writes outside of the sandbox that it was told to do."""
    return replace(ending, forbidden=tuple(e for e in ending.forbidden if not any(place in e for place in places)))


def _shorten(nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def _mounted() -> Iterator[tuple[str, children.Ending]]:
    """Each of the folders of a command on a file system of its own, which is full soon or cannot be written."""
    for folder in ("work", "home", "tmp"):
        for options in ("size=16k", "size=64k", "size=128k", "ro"):
            with _sandbox("mounted") as sandbox:
                place = sandbox.root / folder
                place.mkdir(exist_ok=True)
                with _on_its_own(place, options):
                    ending = children.run(_QUICK, sandbox)
                # Where TMPDIR cannot be written, Python tries /tmp.
                yield f"{folder}, {options}", _without(ending, *(["'/tmp/"] if folder == "tmp" else []))


@contextmanager
def _on_its_own(place: Path, options: str) -> Iterator[None]:
    model = place / "m.onnx"
    data = model.read_bytes() if model.exists() else None
    first = options if options != "ro" else "size=1m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", first, "tmpfs", str(place)], check=True)
    try:
        if data is not None:
            model.write_bytes(data)
        if options == "ro":
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


# --- threads, clocks, writers -----------------------------------------------------------------------------------------


def threads(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Lets a command start no thread, or one, or two."""
    endings = {}
    for count in (1,) if quick else range(6):
        for name, words in _LARGER.items():
            with _sandbox("threads") as sandbox:
                _open_to_all(sandbox.root)
                endings[f"{name}, {count} threads"] = children.run(words, sandbox, prepare=partial(_few_threads, count))
    return _told(endings)


def _open_to_all(folder: Path) -> None:
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    for path in (folder.parent, folder, *folder.rglob("*")):
        path.chmod(0o777)


def _few_threads(count: int) -> None:
    """Lets this process have so few threads, as a user whom limits hold, with root's view of files if it was root."""
    if os.geteuid() == 0:
        os.setresuid(54321, 54321, 0)
        ctypes.CDLL(None).setfsuid(0)  # modules are still read, wherever the interpreter lies
    resource.setrlimit(resource.RLIMIT_NPROC, (count + 1, count + 1))


def clocks(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Lets the clock of the day jump back and forth by days whenever it is asked."""
    endings = {}
    for name, words in list(_LARGER.items())[: 1 if quick else None]:
        with _sandbox("clocks") as sandbox:
            endings[name] = children.run(words, sandbox, prepare=_jump)
    return _told(endings)


def _jump() -> None:
    clock, random = time.time, Random(SEED)
    time.time = lambda: clock() + random.uniform(-1e6, 1e6)


def writers(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Two commands at once write the same outputs and the same profile database, twenty times."""
    found: Counter[str] = Counter()
    for _ in range(1 if quick else 20):
        with _sandbox("writers") as sandbox:
            other = os.fork()
            if other == 0:
                twin = children.Sandbox(sandbox.root)
                os._exit(children.run(_QUICK, twin).code)
            ending = children.run(_QUICK, sandbox)
            code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
            found.update(f"exit code {each}" for each in (ending.code, code))
            found.update(_whole_or_absent(sandbox.work / "out.onnx", _is_model))
            found.update(_whole_or_absent(sandbox.work / "out.json", _is_schedule))
            found[
                "databases that are sound" if _stage_rows(sandbox.profile) is not None else "databases that are DAMAGED"
            ] += 1
            found["files left over"] += len(
                {path.name for path in sandbox.work.iterdir()} - {"m.onnx", "out.onnx", "out.json"}
            )
    return dict(found)


KINDS: Mapping[str, Callable[[bool, Mapping[str, Any]], dict[str, Any]]] = {
    **{"kills": kills, "memory": memory, "disk": disk, "threads": threads, "clocks": clocks, "writers": writers},
}


def _print_once() -> None:
    """Has rich load what it loads late: a user without rights may not read this Python's files."""
    import io

    from rich.console import Console
    from rich.table import Table

    table = Table("a", title="b")
    table.add_row("[red]c")
    Console(file=io.StringIO(), force_terminal=True).print(table)
    "a".encode("ascii")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    load_everything()
    _print_once()
    content = json.loads(asked.results.read_text()) if asked.results.exists() else {"kinds": {}}
    for kind in asked.kind:
        content["kinds"][kind] = KINDS[kind](asked.quick, content["kinds"].get(kind, {}))
        found = {"kinds": content["kinds"], "versions": versions()}
        keep_results(asked.results, found, seeds={"faults": SEED}, goes_on=True)
        print(kind, json.dumps(content["kinds"][kind], indent=1))


if __name__ == "__main__":
    main()
