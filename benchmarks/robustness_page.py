"""Writes docs/robustness.md from the results of fuzz.py, faults.py, soak.py and backend_suite.py. Measures nothing.

python benchmarks/robustness_page.py > docs/robustness.md
"""

# ruff: noqa: E501 - lines of the page
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
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
    kinds = faults["kinds"]
    return _TEXT.format(
        seed=fuzz["seed"],
        fuzz_versions=_versions(fuzz["versions"]),
        fuzz_table=_table(("files", "cases", "exit 0", "1", "2", "3", "4", "broke a rule"), _fuzz_rows(fuzz["kinds"])),
        ran=f"{_ran(fuzz['kinds']['models']):,}",
        models=f"{fuzz['kinds']['models']['done']:,}",
        scheduled=f"{_ran(fuzz['kinds']['schedules']):,}",
        lines=_lines(fuzz["kinds"]),
        most_cpu_s=max(each["most_cpu_s"] for each in fuzz["kinds"].values()),
        most_mib=max(each["most_grown_mib"] for each in fuzz["kinds"].values()),
        fault_table=_table(("what is short", "commands", "exit 0", "1", "2", "3", "broke a rule"), _fault_rows(kinds)),
        **_killed(kinds["kills"]),
        writers=_listed(kinds["writers"]),
        machine=soak["machine"],
        **_soaked(soak),
        suite_versions=_versions(suite["versions"]),
        **_suite(suite),
    )


def _fuzz_rows(kinds: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    for kind, words in _WAYS.items():
        found = kinds[kind]
        codes = [f"{found['codes'].get(str(code), 0):,}" for code in range(5)]
        yield (words, f"{found['done']:,}", *codes, len(found["faults"]))


def _ran(found: Mapping[str, Any]) -> int:
    return sum(stages.get("ran", 0) + stages.get("running", 0) for stages in found["stages"].values())


def _lines(kinds: Mapping[str, Any]) -> str:
    counts: Counter[str] = Counter()
    for found in kinds.values():
        counts.update(found["lines"])
    total = sum(counts.values())
    few = counts["1"] + counts["2"]
    return (
        f"{few / total:.1%} of the {total:,} refusals have one or two lines, and none more than {max(map(int, counts))}"
    )


def _fault_rows(kinds: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    found = {words: kinds[kind] for kind, words in _FAULTS.items()}
    found[_MOUNTED] = kinds["disk"]["mounted"]
    for words, each in found.items():
        codes = [each["codes"].get(str(code), 0) for code in range(4)]
        yield (words, each["runs"], *codes, len(each["faults"]))


def _killed(found: Mapping[str, Any]) -> dict[str, object]:
    counts: Counter[str] = Counter(found["counts"])
    bad = sum(count for what, count in counts.items() if any(word in what for word in ("DAMAGED", "LOST", "HALF")))
    return {
        "kills": found["kills"],
        "killed": counts["killed"],
        "search_s": found["search_s"],
        "bad": bad or "None",
        "whole": counts["output files that are whole"],
        "kept": f"{counts['measurements that were kept']:,}",
        "left_files": counts["temporary files left in the working folder"],
        "left_folders": counts["temporary folders left in TMPDIR"],
    }


def _soaked(soak: Mapping[str, Any]) -> dict[str, object]:
    runs, loads, at_once = soak["runs"], soak["loads"], soak["at_once"]
    return {
        "runs": f"{runs['number']:,}",
        "runs_kib": runs["grown_kib_after_a_tenth"],
        "runs_wrong": runs["wrong"],
        "loads": f"{loads['number']:,}",
        "loads_kib": loads["grown_kib_after_a_tenth"],
        "threads": at_once["threads"],
        "thread_runs": f"{at_once['runs_of_each']:,}",
        "threads_wrong": at_once["wrong"],
        "resident_mib": round(loads["resident_kib"][-1] / 1024),
    }


def _suite(suite: Mapping[str, Any]) -> dict[str, object]:
    here = suite["here"]
    reasons = sorted(suite["left_out"].items(), key=lambda item: -item[1])
    others = [f"- {count} times: {reason}" for reason, count in reasons[:6]]
    rest = sum(count for _, count in reasons[6:])
    refused = [f"- `{name}`: {reason}" for name, reason in {**suite["refused"], **suite["differs"]}.items()]
    return {
        "cases": f"{suite['cases']:,}",
        "suite_runs": f"{suite['onnxruntime_runs']:,}",
        "by_plan": f"{here.get('by a plan', 0):,}",
        "whole_cases": f"{here.get('whole on onnxruntime', 0):,}",
        "refused": here.get("refused", 0),
        "differs": here.get("differs", 0),
        "refusals": "\n" + "\n".join(refused) + "\n" if refused else "",
        "left_out_for": _left_out_for(suite["left_out"]),
        "left_out": f"{suite['cases'] - suite['onnxruntime_runs']:,}",
        "reasons": "\n".join([*others, *([f"- {rest} times: other reasons, each of fewer cases"] if rest else [])]),
    }


def _left_out_for(reasons: Iterable[str]) -> str:
    unread = any("is newer than" in reason for reason in reasons)
    return "onnxruntime does not run them" + ", or iosched does not read their opset" * unread


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.items())


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


_TEXT = """# What happens to damaged files, and when the machine fails

Models and schedules come from strangers, disks fill up and processes are killed. A command may then refuse to work, with an
[exit code](exit-codes.md) and a few lines on stderr. It may not crash, hang, take the machine's memory, show a traceback,
touch other files, or leave half a result.

This page says how that was tried, and what is not promised. Its numbers are made by scripts in `benchmarks/`. The scripts
damage sound files by number, so each case can be made again.

## Damaged files

`python benchmarks/fuzz.py` damages small models of every kind that is read, schedules, profile databases and their exports,
studies, results of `bench` and `iosched.toml`. It does so in five ways:

- It flips, cuts and moves bytes.
- It changes fields of models one by one.
- It edits graphs so that most remain models.
- It puts stages of schedules together otherwise.
- It replaces values in tables.

The table is of seed {seed}, with {fuzz_versions}:

{fuzz_table}

Each case is a command in a forked process. A case breaks a rule if one of these happens:

- a signal, a traceback, or an "internal error";
- an exit code that no table has, or more than five lines;
- ten seconds of the processor, or a gigabyte of memory;
- a process, a connection, or a file outside of the folders that the command was given, as far as Python sees them.

{lines}. The longest case took {most_cpu_s} seconds of the processor, and the largest {most_mib} MiB more than an idle
process. {ran} of the {models} models, and {scheduled} of the schedules, were sound enough to be run. The first 3 % of the
cases are run with every change of the code.

What was found on the way is mended and has tests. The cases that had broken a rule were run again with the mended code.

- These ended with an internal error: sizes of tensors that no machine has, batches of no images on a planned GPU, models of
  texts in `batch`, opsets far below zero, and rows of a database without a date.
- Weights of sparse initializers were looked for in the working folder.
- `optimize -o` put a file in the place of a device.

## Files from strangers

- **Weights in other files** are read from the model's folder and from nowhere else: not by `..`, not by an absolute path, and
  not by a link, even if somebody puts that link in place between the check and the reading. onnxruntime opens a model's
  file itself if the model runs as it is. It then has a check of its own.
- **Schedules**, in files or inside models, are read strictly: every key of its type and range, numbers below 10^18, no operator
  twice, lanes that exist. A schedule that does not fit the model is refused.
- **Sizes** are compared with what is there before memory is taken. That concerns the payload of a tensor and the bytes of a
  file of weights. What an operator reads and writes is compared with the memory that is free (exit code 3).
- **Not promised:** iosched is no sandbox. Libraries that read a model, such as onnxruntime, run in the same process with its
  rights. A model from a stranger may take as long as it likes to run. A file of weights that is cut off while a model runs
  ends the process, since it is mapped into memory.

## A machine that fails

`python benchmarks/faults.py` takes away what commands need.

{fault_table}

Exit codes other than 0 come with a line that says what is short. If a library says "std::bad_alloc" or "pthread_create
failed", no model is blamed.

**Killed:** {kills} searches were killed (SIGKILL). Half of them were killed at moments drawn at random from the {search_s}
seconds that one takes, half up to 10 ms after a measurement or after it was kept. {killed} had not ended yet, and {kept}
measurements had been kept until then. {bad} of them left a damaged profile database, lost a measurement that was kept, lost
more than the one under way, or left half an output. {whole} outputs were there, and whole. Left over were {left_files}
temporary files beside outputs and {left_folders} folders `iosched-*` in the folder for temporary files, which the system
clears.

**Two writers** of one output and one profile database ran at the same time, twenty times: {writers}. Each file is that of
one of the two as a whole. The model and the schedule file beside it may be of different ones.

**A kernel that fails** stops all lanes, with onnxruntime's words; the executor stays usable
(`tests/runtime/cpu/test_executors.py`).

Durations are taken from clocks that do not jump. The clock of the day is asked for dates in files, and to tell the claims of
processes on one study apart.

## For a long time

`python benchmarks/soak.py` ran on {machine}:

- {runs} runs of one plan on two lanes. After the first tenth the process grew by {runs_kib} KiB. {runs_wrong} results were wrong.
- {loads} times a model was loaded, run and closed. After the first tenth the process grew by {loads_kib} KiB, to {resident_mib}
  MiB in all. That is two KiB for each load, of onnxruntime or of us.
- {threads} threads ran one model at the same time, {thread_runs} times each on inputs of their own. {threads_wrong} results were
  wrong.

## ONNX's own cases

ONNX comes with cases for its operators. `python benchmarks/backend_suite.py` runs those whose results are not random
({suite_versions}). Of {cases}, onnxruntime runs {suite_runs}. Of these, {by_plan} run here by a plan with the same results,
{whole_cases} run whole on onnxruntime (sizes that only a run tells, sequences, strings), {refused} are refused and {differs} differ.
{refusals}
The other {left_out} are left out: {left_out_for}.

{reasons}
"""


def main() -> None:
    names = ("fuzz", "faults", "soak", "onnx-backend")
    print(page(*(json.loads((RESULTS / f"{name}.json").read_text()) for name in names)), end="")


if __name__ == "__main__":
    main()
