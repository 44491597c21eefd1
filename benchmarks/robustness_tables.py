"""Tables and numbers of reports/robustness.md from the results of fuzz.py, faults.py, soak.py and backend_suite.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from result_tables import Table
from results_files import results

_BAD = ("DAMAGED", "LOST", "HALF", "FAILED")
_SERIES_OF = {
    "onnx_read": "onnx reads a model",
    "read": "iosched reads it",
    "sessions": "onnxruntime opens and closes it, in one session",
    "loaded": "iosched loads and closes it",
}
_SERIES = ("resident_kib", "heap_kib", "python_blocks")
_KINDS = {"models": "models", "schedules": "schedule files", "stores": "databases, exports, studies, results, settings"}
_FAULTS = {
    "disk": "files that may have no more than 512 bytes to 100 KB; devices that are full; folders that take no file",
    "memory": "0 to 1,000 MiB of memory beyond that of the loaded libraries",
    "threads": "no further thread, or up to five",
    "clocks": "a clock of the day that jumps by days, back and forth, whenever it is asked",
}
_MOUNTED = "working folder, home and folder for temporary files each full after 16 to 128 KiB, or read-only"
_REASONS = 6


def fuzz_table() -> Table:
    """Cases of each kind of file by exit code."""
    rows = []
    for kind, words in _KINDS.items():
        found = results("fuzz")["kinds"][kind]
        rows.append([words, f"{found['done']:,}", *_codes(found, 5), len(found["faults"])])
    return ["files", "cases", "exit 0", *"1234", "broke a rule"], rows


def fault_table() -> Table:
    """Commands of each fault by exit code."""
    kinds = results("faults")["kinds"]
    found = {words: kinds[kind] for kind, words in _FAULTS.items()}
    found[_MOUNTED] = kinds["disk"]["mounted"]
    rows = [[words, each["runs"], *_codes(each, 4), len(each["faults"])] for words, each in found.items()]
    return ["what is short", "commands", "exit 0", *"123", "broke a rule"], rows


def _codes(found: Mapping[str, Any], count: int) -> list[str]:
    return [f"{found['codes'].get(str(code), 0):,}" for code in range(count)]


def commits() -> str:
    """The commits whose code ran the cases, and the cases that were run again with later code."""
    fuzz = results("fuzz")
    lines = []
    for kind, words in _KINDS.items():
        known = fuzz["kinds"][kind].get("commits", {})
        by_code = ", ".join(f"{count:,} by commit {commit[:7]}" for commit, count in known.items())
        lines.append(f"- {words[0].upper()}{words[1:]}: {by_code or 'not recorded'}.")
    if again := fuzz.get("again"):
        counts = ", ".join(f"{again[kind]['done']:,} {words}" for kind, words in _KINDS.items())
        (commit,) = {commit for found in again.values() for commit in found["commits"]}
        broke = sum(len(found["faults"]) for found in again.values()) or "None"
        lines += [
            "",
            f"The first cases of each kind were run again with commit {commit[:7]}: {counts}.",
            f"{broke} of them broke a rule.",
        ]
    return "\n".join(lines)


@cache
def derived() -> Mapping[str, Any]:
    """Numbers of the page that are not in a results file as they are."""
    tried, faults, soak, suite = (results(name) for name in ("fuzz", "faults", "soak", "onnx-backend"))
    tried, faults = tried["kinds"], faults["kinds"]
    lines = sum((Counter(found["lines"]) for found in tried.values()), Counter[str]())
    counts = {kind: Counter(faults[kind]["counts"]) for kind in ("kills", "amid")}
    ended = sum(count for what, count in faults["writers"].items() if what.startswith("exit code"))
    return {
        "few_lines": (lines["1"] + lines["2"]) / lines.total(),
        "errors": lines.total(),
        "most_lines": max(map(int, lines)),
        "most_cpu_s": max(each["most_cpu_s"] for each in tried.values()),
        "most_mib": max(each["most_grown_mib"] for each in tried.values()),
        "ran": {kind: _ran(found) for kind, found in tried.items()},
        **counts,
        "bad": {kind: _bad(found) or "None" for kind, found in counts.items()},
        "writers": Counter(faults["writers"]),
        "ended": ended,
        "rounds": ended // 2,
        "resident_mib": soak["loads"]["resident_kib"][-1] / 1024,
        "here": Counter(suite["here"]),
        "left_out": suite["cases"] - suite["onnxruntime_runs"],
    }


def _bad(counts: Mapping[str, int]) -> int:
    return sum(count for what, count in counts.items() if any(word in what for word in _BAD))


def _ran(found: Mapping[str, Any]) -> int:
    return sum(stages.get("ran", 0) + stages.get("running", 0) for stages in found["stages"].values())


def growth_table() -> Table:
    """Growth in the two halves of each series after its first tenth."""
    rows = []
    for kind, words in _SERIES_OF.items():
        found = results("soak")[kind]
        spans = [(series, *ends) for series in _SERIES for ends in ((1, 5), (5, 10))]
        halves = [f"{found[series][to] - found[series][since]:,}" for series, since, to in spans]
        rows.append([words, f"{found['number']:,}", *halves])
    heads = ("resident: KiB more", "in use: KiB more", "small objects: more")
    return ["operation", "times", *(f"{head}{half}" for head in heads for half in _HALVES)], rows


_HALVES = (", first half", ", second half")


def left_out_reasons() -> str:
    """Why ONNX's own cases are left out, most frequent reasons first."""
    reasons = sorted(results("onnx-backend")["left_out"].items(), key=lambda item: -item[1])
    lines = [f"- {count} times: {reason}" for reason, count in reasons[:_REASONS]]
    rest = sum(count for _, count in reasons[_REASONS:])
    return "\n".join([*lines, *([f"- {rest} times: other reasons, each of fewer cases"] if rest else [])])
