"""Counts the outcomes of iosched under faults of disk, memory, clock and other processes, one kind at a time.

    python benchmarks/faults.py --kind kills memory      # all kinds by default; replaces the earlier counts of each

Commands run in forked children, as in fuzz.py, on small models. Full disks are limits on the size of files and, where
this process may mount them, small file systems in memory.

Options:
    --quick: a few cases of each kind
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fuzz_children as children
from command_line import read_options
from faults_kills import SEED, amid, is_model, is_schedule, kills, sandbox, stage_keys, whole_or_absent
from fuzz import load_everything, versions
from results_files import keep_results, known_results

RESULTS = Path(__file__).parent / "results" / "faults.json"
_OUTPUTS = ("-o", "out.onnx", "--schedule", "out.json", "--json")
_QUICK = ("optimize", "m.onnx", "--threads", "2", "--budget", "0.3", *_OUTPUTS)


def _told(endings: Mapping[str, children.Ending]) -> dict[str, Any]:
    """Outcomes of commands: counts by exit code, violations, and one line of each."""
    codes = Counter(str(ending.code) for ending in endings.values())
    faults = {name: ending.faults() for name, ending in endings.items() if ending.faults()}
    lines = {name: ending.message.partition("\n")[0] for name, ending in endings.items() if ending.code}
    return {"runs": len(endings), "codes": dict(codes), "faults": faults, "lines": lines}


# --- memory ---------------------------------------------------------------------------------------------------------


def memory(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Limits the additional memory of a search and a run to that number of bytes.

    Just below what a command needs, the C library itself may end it: with SIGABRT or code 127, and without a message.
    """
    mib = (24, 120) if quick else (*range(0, 64, 4), *range(64, 320, 16), *range(320, 1024, 64))
    return _told({f"{name}, {size} MiB": _limited(words, size) for name, words in _LARGER.items() for size in mib})


_LARGER = {
    "optimize": _QUICK,
    "run": ("run", "m.onnx", "--threads", "2"),
    "scheduled": ("optimize", "m.onnx", "--threads", "2", "--strategy", "greedy", "--budget", "0.05", "-q"),
    "inspect": ("inspect", "m.onnx"),
}


def _limited(words: Sequence[str], mib: int) -> children.Ending:
    with sandbox("memory") as folders:
        more = ("--batch-size", "32") if words[0] == "run" else ()
        return children.run((*words, *more), folders, prepare=partial(_take, mib))


def _take(mib: int) -> None:
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + mib * 2**20, own + mib * 2**20))


# --- disks ----------------------------------------------------------------------------------------------------------


def disk(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Full disks and folders that cannot be written, for outputs, the profile database and temporary files."""
    endings: dict[str, children.Ending] = {}
    for nbytes in (4096,) if quick else (512, 1024, 4096, 8192, 20000, 40000, 60000, 100_000):
        with sandbox("files") as folders:
            endings[f"no file above {nbytes} bytes"] = children.run(_QUICK, folders, prepare=partial(_shorten, nbytes))
    for name, words in {
        "-o /dev/full": (*_QUICK[:-5], "-o", "/dev/full"),
        "--output /dev/full": ("run", "m.onnx", "--output", "/dev/full"),
        "zoo export -o /dev/full": ("zoo", "export", "squeezenet", "-o", "/dev/full"),
        "-o in /proc": (*_QUICK[:-5], "-o", "/proc/out.onnx"),
        "database in /proc": (*_QUICK, "--profile-db", "/proc/none/p.sqlite"),
    }.items():
        with sandbox("files") as folders:
            endings[name] = children.run(words, folders)
    found = _told({name: _without(ending, "/dev/full", "/proc") for name, ending in endings.items()})
    return found | {"mounted": _told(dict(_mounted()))} if os.geteuid() == 0 and not quick else found


def _without(ending: children.Ending, *places: str) -> children.Ending:
    """The ending, without the requested writes outside of the sandbox."""
    return replace(ending, forbidden=tuple(e for e in ending.forbidden if not any(place in e for place in places)))


def _shorten(nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def _mounted() -> Iterator[tuple[str, children.Ending]]:
    """Each of the folders of a command on a separate file system, which is soon full or not writable."""
    for folder in ("work", "home", "tmp"):
        for options in ("size=16k", "size=64k", "size=128k", "ro"):
            with sandbox("mounted") as folders:
                place = folders.root / folder
                place.mkdir(exist_ok=True)
                with _on_its_own(place, options):
                    ending = children.run(_QUICK, folders)
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
    """Limits the threads that a command can start to none, one or two."""
    endings = {}
    for count in (1,) if quick else range(6):
        for name, words in _LARGER.items():
            with sandbox("threads") as folders:
                _open_to_all(folders.root)
                endings[f"{name}, {count} threads"] = children.run(words, folders, prepare=partial(_few_threads, count))
    return _told(endings)


def _open_to_all(folder: Path) -> None:
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    for path in (folder.parent, folder, *folder.rglob("*")):
        path.chmod(0o777)


def _few_threads(count: int) -> None:
    """Limits the threads of this process, as a user without root's exemption but with its view of files."""
    if os.geteuid() == 0:
        os.setresuid(54321, 54321, 0)
        ctypes.CDLL(None).setfsuid(0)  # modules must stay readable, wherever the interpreter is
    resource.setrlimit(resource.RLIMIT_NPROC, (count + 1, count + 1))


def clocks(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the wall clock jump back and forth by days at each call."""
    endings = {}
    for name, words in list(_LARGER.items())[: 1 if quick else None]:
        with sandbox("clocks") as folders:
            endings[name] = children.run(words, folders, prepare=_jump)
    return _told(endings)


def _jump() -> None:
    clock, random = time.time, Random(SEED)
    time.time = lambda: clock() + random.uniform(-1e6, 1e6)


def writers(quick: bool, _: Mapping[str, Any]) -> dict[str, Any]:
    """Two concurrent commands write the same outputs and the same profile database, twenty times."""
    found: Counter[str] = Counter()
    for _ in range(1 if quick else 20):
        with sandbox("writers") as folders:
            other = os.fork()
            if other == 0:
                twin = children.Sandbox(folders.root)
                os._exit(children.run(_QUICK, twin).code)
            ending = children.run(_QUICK, folders)
            code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
            found.update(f"exit code {each}" for each in (ending.code, code))
            found.update(whole_or_absent(folders.work / "out.onnx", is_model))
            found.update(whole_or_absent(folders.work / "out.json", is_schedule))
            state = "sound" if stage_keys(folders.profile) is not None else "DAMAGED"
            found[f"databases that are {state}"] += 1
            names = {path.name for path in folders.work.iterdir()}
            found["files left over"] += len(names - {"m.onnx", "out.onnx", "out.json"})
    return dict(found)


KINDS: Mapping[str, Callable[[bool, Mapping[str, Any]], dict[str, Any]]] = {
    each.__name__: each for each in (kills, amid, memory, disk, threads, clocks, writers)
}


def _print_once() -> None:
    """Makes rich load its late imports: a user without rights may not read this Python's files."""
    import io

    from rich.console import Console
    from rich.table import Table

    table = Table("a", title="b")
    table.add_row("[red]c")
    Console(file=io.StringIO(), force_terminal=True).print(table)
    "a".encode("ascii")


def main() -> None:
    kinds = {"choices": KINDS, "nargs": "+", "default": list(KINDS)}
    asked = read_options(__file__, kind=kinds, quick=False, results=RESULTS)
    load_everything()
    _print_once()
    content = {"kinds": {}, **known_results(asked.results)}
    for kind in asked.kind:
        content["kinds"][kind] = KINDS[kind](asked.quick, content["kinds"].get(kind, {}))
        found = {"kinds": content["kinds"], "versions": versions()}
        keep_results(asked.results, found, seeds={"faults": SEED}, goes_on=True)
        print(kind, json.dumps(content["kinds"][kind], indent=1))


if __name__ == "__main__":
    main()
