"""Compares the output and files of two trees of iosched, call by call, on one machine.

    python tests/golden/compare.py BEFORE AFTER [--seeds 500] [--only NAME]

BEFORE and AFTER are Pythons (such as .venv/bin/python), each with one of the trees installed. A difference is reported
unless a line of `differences.txt` expects it: a regular expression of its place, a tab, and the reason. Times, places,
versions and provenance are masked. Exit code 1: there are differences that nothing expects, or lines that match none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path

import numpy as np
import onnx
from calls import FROZEN, scenarios

HERE = Path(__file__).parent
MASKED_KEYS = {"provenance", "seconds", "versions", "search_seconds", "pid", "memory", "free_bytes", "load", "uptime_s"}
KILLED = re.compile(r"(?P<signal>KILL|INT) when (?P<path>\S+) has (?P<nbytes>\d+) bytes: (?P<words>.*)")
MASKS = (
    (re.compile(r"\d[\d.,]* (s|seconds|ms|µs)\b"), "<time>"),
    (re.compile(r"\d+:\d\d(:\d\d)?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]<time>\S*"), "<date>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<pointer>"),
)


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--seeds", type=int, default=500, help="random networks")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        room = Path(name)
        files = room / "files"
        files.mkdir()
        subprocess.run([options.before, HERE / "models.py", files, str(options.seeds)], check=True)
        if options.only in FROZEN:
            subprocess.run([options.before.absolute(), HERE / "frozen_profile.py", files], check=True)
        before, after = (
            everything(python.absolute(), files, room / side, options.seeds, options.only)
            for side, python in (("before", options.before), ("after", options.after))
        )
    sys.exit(report(before, after))


def everything(python: Path, files: Path, room: Path, seeds: int, only: str) -> dict[str, str]:
    """All texts and digests of one tree by their place."""
    wanted = {name: steps for name, steps in scenarios().items() if only in name}
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(dict, scenario(python, files, room / name, name, steps)) for name, steps in wanted.items()]
        probed = pool.submit(probe, python, files, seeds if not only else 0)
        found = {place: text for run in runs for place, text in run.result().items()}
        return {**found, **probed.result()}


def probe(python: Path, files: Path, seeds: int) -> dict[str, str]:
    words = [python, "-W", "ignore", HERE / "probe.py", files, str(seeds)]
    environment = {**os.environ, "IOSCHED_PROFILE_DB": ":memory:"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, cwd=files, env=environment)
    return dict(json.loads(done.stdout))


def scenario(python: Path, files: Path, room: Path, name: str, steps: object) -> Iterator[tuple[str, str]]:
    """Exit code, output and files of each step of a scenario."""
    room.mkdir(parents=True)
    for path in files.iterdir():
        if not path.name.startswith("seed"):
            (room / path.name).symlink_to(path)
    home = room / ".home"
    home.mkdir()
    environment = {
        "HOME": str(home), "PATH": os.environ["PATH"], "COLUMNS": "100", "NO_COLOR": "1", "LANG": "C.UTF-8",
        "IOSCHED_DEVICE": "cpu", "IOSCHED_SHARE_CORES": "1",
    }  # fmt: skip
    known: set[tuple[Path, int]] = set()
    for step in steps:  # type: ignore[attr-defined]
        place = f"{name}: {step}"
        if ended_early := KILLED.fullmatch(step):
            words = [str(python), "-m", "iosched", *ended_early["words"].split()]
            yield f"{place} [code]", str(killed(words, room, environment, ended_early))
            continue
        done = subprocess.run(
            [python, "-m", "iosched", *step.split()],
            cwd=room, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=600, check=False,
        )  # fmt: skip
        yield f"{place} [code]", str(done.returncode)
        yield f"{place} [stdout]", masked(done.stdout, room, {"latency_us"} if step.startswith("run") else set())
        yield f"{place} [stderr]", masked(done.stderr, room)
        for path in sorted(each for each in room.rglob("*") if is_result(each, home)):
            if (path, path.stat().st_mtime_ns) in known:
                continue
            known.add((path, path.stat().st_mtime_ns))
            yield f"{place} [{path.relative_to(room)}]", content(path, room)
    shutil.rmtree(room)


def killed(words: Sequence[str], room: Path, environment: Mapping[str, str], how: re.Match[str]) -> int:
    """The exit code of a call that gets a signal once a file has a number of bytes."""
    path, nbytes = room / how["path"], int(how["nbytes"])
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=room, env=environment, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        while process.poll() is None and not (path.is_file() and path.stat().st_size >= nbytes):
            time.sleep(0.01)
        process.send_signal(signal.Signals[f"SIG{how['signal']}"])
        return process.wait(timeout=600)


def is_result(path: Path, home: Path) -> bool:
    return path.is_file() and not path.is_symlink() and home not in path.parents and ".db" not in path.name


def content(path: Path, room: Path) -> str:
    """A file as text: arrays and models as digests of their relevant content."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return "\n".join(f"{name} {arrays[name].shape} {digest(arrays[name].tobytes())}" for name in sorted(arrays))
    if path.suffix == ".onnx":
        return model_text(path.read_bytes(), room)
    return masked(path.read_bytes(), room)


def model_text(data: bytes, room: Path) -> str:
    model = onnx.load_from_string(data)
    metadata = {each.key: masked(each.value.encode(), room) for each in model.metadata_props}
    del model.metadata_props[:]
    nodes = "\n".join(f"{node.op_type} {list(node.output)} {node.metadata_props}" for node in model.graph.node)
    return f"{json.dumps(metadata, indent=1)}\n{nodes}\n{digest(model.SerializeToString(deterministic=True))}"


def masked(data: bytes, room: Path, keys: Set[str] = frozenset()) -> str:
    """Text without times, places, versions, provenance and values of `keys`; JSON with a line for each value."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes, {digest(data)}" if not data.startswith(b"\x08") else model_text(data, room)
    if text.startswith("{"):
        text = json_text(text, MASKED_KEYS | keys)
    text = text.replace(str(room), "<folder>").replace(str(room.resolve()), "<folder>")
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return text


def json_text(text: str, keys: Set[str]) -> str:
    """One JSON document, or one on each line, with a line for each value."""
    for parts in ([text], text.splitlines()):
        try:
            found = [json.loads(part) for part in parts]
        except ValueError:
            continue
        return "\n".join(json.dumps(without(each, keys), indent=1, sort_keys=True) for each in found)
    return text


def without(value: object, keys: Set[str]) -> object:
    if isinstance(value, Mapping):
        return {key: without(each, keys) for key, each in value.items() if key not in keys}
    return [without(each, keys) for each in value] if isinstance(value, list) else value


def report(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Prints differences that nothing expects, and expectations that match none."""
    rows = [row.split("\t") for row in (HERE / "differences.txt").read_text().splitlines() if row and row[0] != "#"]
    expected = {re.compile(row[0]): 0 for row in rows}
    places = [place for place in (before | after) if before.get(place) != after.get(place)]
    unexpected = 0
    for place in places:
        matching = [pattern for pattern in expected if pattern.search(place)]
        for pattern in matching:
            expected[pattern] += 1
        if not matching:
            unexpected += 1
            lines = unified_diff(
                before.get(place, "").splitlines(), after.get(place, "").splitlines(), "before", "after", n=0
            )
            print(f"=== {place}", *[line[:200] for line in lines][:20], sep="\n")
    unmatched = [pattern.pattern for pattern, count in expected.items() if not count]
    for pattern in unmatched:
        print(f"=== expected and not found: {pattern}")
    print(f"{len(before | after)} places compared, {len(places)} differ, {unexpected} of them unexpected")
    return 1 if unexpected or unmatched else 0


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


if __name__ == "__main__":
    main()
