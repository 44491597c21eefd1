"""Writes benchmarks/reports/robustness.md from the results of fuzz.py, faults.py, soak.py and backend_suite.py.

Measures nothing.

python benchmarks/robustness_page.py > benchmarks/reports/robustness.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import markdown, results

TEMPLATE = Path(__file__).with_name("robustness.template.md")
_BAD = ("DAMAGED", "LOST", "HALF", "FAILED")
_WHAT_GROWS = {
    "onnx_read": "onnx reads a model",
    "read": "iosched reads it",
    "sessions": "onnxruntime opens and closes it, in one session",
    "loaded": "iosched loads and closes it",
}
_SERIES = ("resident_kib", "heap_kib", "python_blocks")
_WAYS = {"models": "models", "schedules": "schedule files", "stores": "databases, exports, studies, results, settings"}
_FAULTS = {
    "disk": "files that may have no more than 512 bytes to 100 KB; devices that are full; folders that take no file",
    "memory": "0 to 1,000 MiB of memory beyond that of the loaded libraries",
    "threads": "no further thread, or up to five",
    "clocks": "a clock of the day that jumps by days, back and forth, whenever it is asked",
}
_MOUNTED = "working folder, home and folder for temporary files each full after 16 to 128 KiB, or read-only"


def page(fuzz: Any, faults: Any, soak: Any, suite: Any) -> str:
    """The text of the page."""
    kinds, tried = faults["kinds"], fuzz["kinds"]
    told = kinds["kills"]["counts"], kinds["amid"]["counts"], kinds["writers"]
    killed, began, written = map(Counter, told)
    lines = sum((Counter(found["lines"]) for found in tried.values()), Counter[str]())
    ended = sum(count for what, count in written.items() if what.startswith("exit code"))
    return TEMPLATE.read_text(encoding="utf-8").format(
        fuzz=fuzz,
        fuzz_versions=_versions(fuzz["versions"]),
        fuzz_table=markdown(("files", "cases", *_codes(5), "broke a rule"), _fuzz_rows(tried)),
        ran=_ran(tried["models"]),
        scheduled=_ran(tried["schedules"]),
        few_lines=(lines["1"] + lines["2"]) / lines.total(),
        errors=lines.total(),
        most_lines=max(map(int, lines)),
        most_cpu_s=max(each["most_cpu_s"] for each in tried.values()),
        most_mib=max(each["most_grown_mib"] for each in tried.values()),
        fault_table=markdown(("what is short", "commands", *_codes(4), "broke a rule"), _fault_rows(kinds)),
        commits="\n".join(_commits(tried)),
        again=_again(fuzz.get("again", {})),
        kills=kinds["kills"],
        killed=killed,
        bad=_bad(killed) or "None",
        amid=kinds["amid"],
        began=began,
        amid_bad=_bad(began) or "none",
        written=written,
        ended=ended,
        rounds=ended // 2,
        soak=soak,
        kib_each=round(soak["loads"]["grown_kib_after_a_tenth"] / (0.9 * soak["loads"]["number"])),
        resident_mib=round(soak["loads"]["resident_kib"][-1] / 1024),
        growth=_growth(soak),
        **_growth_of(soak),
        suite_versions=_versions(suite["versions"]),
        **_suite(suite),
    )


def _codes(count: int) -> Sequence[str]:
    return ("exit 0", *map(str, range(1, count)))


def _bad(counts: Mapping[str, int]) -> int:
    return sum(count for what, count in counts.items() if any(word in what for word in _BAD))


def _fuzz_rows(kinds: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    for kind, words in _WAYS.items():
        found = kinds[kind]
        codes = [f"{found['codes'].get(str(code), 0):,}" for code in range(5)]
        yield (words, f"{found['done']:,}", *codes, len(found["faults"]))


def _commits(kinds: Mapping[str, Any]) -> Iterable[str]:
    """Which code ran the cases, as far as it was written down."""
    for kind, words in _WAYS.items():
        known = kinds[kind].get("commits", {})
        by_code = ", ".join(f"{count:,} by that of commit {commit[:7]}" for commit, count in known.items())
        yield f"- {words[0].upper()}{words[1:]}: {by_code or 'by code that was not written down'}."


def _again(kinds: Mapping[str, Any]) -> str:
    """How many cases were run once more with later code; nothing where none were."""
    if not kinds:
        return ""
    counts = ", ".join(f"{kinds[kind]['done']:,} {words}" for kind, words in _WAYS.items())
    (commit,) = {commit for found in kinds.values() for commit in found["commits"]}
    broke = sum(len(found["faults"]) for found in kinds.values())
    said = f"run again with the code of commit {commit[:7]}, which has what was mended since: {counts}"
    return f"\nThe first cases of each kind were {said}. {broke or 'None'} of them broke a rule."


def _ran(found: Mapping[str, Any]) -> int:
    return sum(stages.get("ran", 0) + stages.get("running", 0) for stages in found["stages"].values())


def _fault_rows(kinds: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    found = {words: kinds[kind] for kind, words in _FAULTS.items()}
    found[_MOUNTED] = kinds["disk"]["mounted"]
    for words, each in found.items():
        codes = [each["codes"].get(str(code), 0) for code in range(4)]
        yield (words, each["runs"], *codes, len(each["faults"]))


def _growth(soak: Mapping[str, Any]) -> str:
    heads = ("what was done", "times", "resident: KiB more, first half", "second half", "in use: KiB more, first half",
             "second half", "small objects: more, first half", "second half")  # fmt: skip
    rows = []
    for kind, words in _WHAT_GROWS.items():
        if (found := soak.get(kind)) is None:
            continue
        spans = [(series, *ends) for series in _SERIES for ends in ((1, 5), (5, 10))]
        halves = [f"{found[series][to] - found[series][since]:,}" for series, since, to in spans]
        rows.append((words, f"{found['number']:,}", *halves))
    return markdown(heads, rows)


def _growth_of(soak: Mapping[str, Any]) -> dict[str, float]:
    """What a load and its close took after the first tenth, and what a session of onnxruntime alone did."""
    found, alone = soak["loaded"], soak["sessions"]
    pairs = [*((found, name) for name in _SERIES), (alone, _SERIES[0]), (found, "done"), (alone, "done")]
    resident, used, blocks, session, loads, opened = (each[series][10] - each[series][1] for each, series in pairs)
    return {"resident": resident / loads, "used": used / loads, "blocks": blocks, "session": session / opened}


def _suite(suite: Mapping[str, Any]) -> dict[str, object]:
    here = suite["here"]
    reasons = sorted(suite["left_out"].items(), key=lambda item: -item[1])
    others = [f"- {count} times: {reason}" for reason, count in reasons[:6]]
    rest = sum(count for _, count in reasons[6:])
    refused = [f"- `{name}`: {reason}" for name, reason in {**suite["refused"], **suite["differs"]}.items()]
    return {
        "suite": suite,
        "here": Counter(here),
        "refusals": _REFUSALS + "\n".join(refused) + "\n" if refused else "",
        "left_out_for": _left_out_for(suite["left_out"]),
        "left_out": suite["cases"] - suite["onnxruntime_runs"],
        "reasons": "\n".join([*others, *([f"- {rest} times: other reasons, each of fewer cases"] if rest else [])]),
    }


def _left_out_for(reasons: Iterable[str]) -> str:
    unread = any("is newer than" in reason for reason in reasons)
    return "onnxruntime does not run them" + ", or iosched does not read their opset" * unread


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


_REFUSALS = "\nThese are the ones that are refused or give other results, each with the reason:\n\n"


def main() -> None:
    print(page(*map(results, ("fuzz", "faults", "soak", "onnx-backend"))), end="")


if __name__ == "__main__":
    main()
