"""Writes benchmarks/reports/robustness.md from the results of fuzz.py, faults.py, soak.py and backend_suite.py. Measures nothing.

python benchmarks/robustness_page.py > benchmarks/reports/robustness.md
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
        commits=_commits(fuzz["kinds"]),
        again=_again(fuzz.get("again", {})),
        **_killed(kinds["kills"]),
        amid=_amid(kinds["amid"]),
        **_written(kinds["writers"]),
        machine=soak["machine"],
        **_soaked(soak),
        growth=_growth(soak),
        growth_says=_growth_says(soak),
        suite_versions=_versions(suite["versions"]),
        **_suite(suite),
    )


def _fuzz_rows(kinds: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    for kind, words in _WAYS.items():
        found = kinds[kind]
        codes = [f"{found['codes'].get(str(code), 0):,}" for code in range(5)]
        yield (words, f"{found['done']:,}", *codes, len(found["faults"]))


def _commits(kinds: Mapping[str, Any]) -> str:
    """Which code ran the cases, as far as it was written down."""
    said = []
    for kind, words in _WAYS.items():
        by_code = [
            f"{count:,} by that of commit {commit[:7]}" for commit, count in kinds[kind].get("commits", {}).items()
        ]
        said.append(f"- {words[0].upper()}{words[1:]}: {', '.join(by_code) or 'by code that was not written down'}.")
    return "\n".join(said)


def _again(kinds: Mapping[str, Any]) -> str:
    """How many cases were run once more with later code; nothing where none were."""
    if not kinds:
        return ""
    counts = ", ".join(f"{kinds[kind]['done']:,} {words}" for kind, words in _WAYS.items())
    (commit,) = {commit for found in kinds.values() for commit in found["commits"]}
    broke = sum(len(found["faults"]) for found in kinds.values())
    return (
        f"\nThe first cases of each kind were run again with the code of commit {commit[:7]}, which has what was mended since:"
        f" {counts}. {broke or 'None'} of them broke a rule."
    )


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


_BAD = ("DAMAGED", "LOST", "HALF", "FAILED")


def _amid(found: Mapping[str, Any]) -> str:
    counts: Counter[str] = Counter(found["counts"])
    bad = sum(count for what, count in counts.items() if any(word in what for word in _BAD))
    phases = {what.removeprefix("killed "): count for what, count in counts.items() if what.startswith("killed ")}
    return (
        f"Of {found['kills']} searches, {counts['killed']} were killed while they measured: at a moment drawn from the first"
        f" {found['within_s']:g} seconds after their first measurement began, in a model with hundreds of stages to measure."
        f" {phases.get('while something was measured', 0)} were killed while a stage was measured,"
        f" {phases.get('while it was kept', 0)} while a measurement was kept, and {phases.get('in between', 0)} in between."
        f" {counts['measurements that were kept']:,} measurements had been kept until then, and {bad or 'none'} of the searches"
        " did any of what is listed above. Then the same search was started again:"
        f" {counts['second searches that went on']} ended with exit code 0, and none of the kept measurements was gone"
        " afterwards."
    )


def _written(counts: Mapping[str, int]) -> dict[str, object]:
    """Two commands a round, each of which writes two files, and one database for both."""
    ended = sum(count for what, count in counts.items() if what.startswith("exit code"))
    sound, whole, left = (
        counts.get(what, 0) for what in ("databases that are sound", "output files that are whole", "files left over")
    )
    rounds = ended // 2
    return {
        "rounds": rounds,
        "writers": f"{counts.get('exit code 0', 0)} of the {ended} commands ended with exit code 0. Afterwards {sound} of"
        f" the {rounds} databases were sound, {whole} of the {ended} output files were whole, and {left} other files were"
        " left over.",
    }


def _soaked(soak: Mapping[str, Any]) -> dict[str, object]:
    runs, loads, at_once = soak["runs"], soak["loads"], soak["at_once"]
    return {
        "runs": f"{runs['number']:,}",
        "runs_kib": runs["grown_kib_after_a_tenth"],
        "runs_wrong": runs["wrong"],
        "loads": f"{loads['number']:,}",
        "loads_kib": loads["grown_kib_after_a_tenth"],
        "kib_each": round(loads["grown_kib_after_a_tenth"] / (0.9 * loads["number"])),
        "threads": at_once["threads"],
        "thread_runs": f"{at_once['runs_of_each']:,}",
        "threads_wrong": at_once["wrong"],
        "resident_mib": round(loads["resident_kib"][-1] / 1024),
    }


_WHAT_GROWS = {
    "onnx_read": "onnx reads a model",
    "read": "iosched reads it",
    "sessions": "onnxruntime opens and closes it, in one session",
    "loaded": "iosched loads and closes it",
}


def _growth(soak: Mapping[str, Any]) -> str:
    heads = ("what was done", "times", "resident: KiB more, first half", "second half", "in use: KiB more, first half",
             "second half", "small objects: more, first half", "second half")  # fmt: skip
    rows = []
    for kind, words in _WHAT_GROWS.items():
        if (found := soak.get(kind)) is None:
            continue
        halves = [
            f"{found[series][to] - found[series][since]:,}"
            for series in ("resident_kib", "heap_kib", "python_blocks")
            for since, to in ((1, 5), (5, 10))
        ]
        rows.append((words, f"{found['number']:,}", *halves))
    return _table(heads, rows)


def _growth_says(soak: Mapping[str, Any]) -> str:
    found = soak["loaded"]
    times = found["done"][10] - found["done"][1]
    resident, used, blocks = (
        found[series][10] - found[series][1] for series in ("resident_kib", "heap_kib", "python_blocks")
    )
    alone = soak["sessions"]
    session = (alone["resident_kib"][10] - alone["resident_kib"][1]) / (alone["done"][10] - alone["done"][1])
    return (
        "The first tenth of each series is left out, and the first half is from there to the middle. After that tenth, a load"
        f" and its close took {resident / times:.2f} KiB that stay resident, of which {used / times:.2f} KiB were in use. The"
        " growth is less in the second half, and had not ended with the series. It is not of objects of Python, whose small"
        f" ones changed by {blocks:,} in all. Reading a model took next to nothing in the second half. A session of"
        f" onnxruntime alone took {session:.2f} KiB, and grew until the end. So what grows comes with what is opened:"
        " onnxruntime's sessions, or the executor around them. Which of the two takes how much was not told apart."
    )


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
        "refusals": _REFUSALS + "\n".join(refused) + "\n" if refused else "",
        "left_out_for": _left_out_for(suite["left_out"]),
        "left_out": f"{suite['cases'] - suite['onnxruntime_runs']:,}",
        "reasons": "\n".join([*others, *([f"- {rest} times: other reasons, each of fewer cases"] if rest else [])]),
    }


def _left_out_for(reasons: Iterable[str]) -> str:
    unread = any("is newer than" in reason for reason in reasons)
    return "onnxruntime does not run them" + ", or iosched does not read their opset" * unread


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


_REFUSALS = "\nThese are the ones that are refused or give other results, each with the reason:\n\n"
_TEXT = """# What happens to damaged files, and when the machine fails

This page is for those who give iosched files of strangers, or run it where disks fill up and processes are killed. It says
what iosched does then, how that was tried, and what is not promised.

If a command cannot do its work, it says so in a few lines on stderr and ends with an [exit code](../../docs/exit-codes.md). These are
the rules of this page: a command never crashes, hangs, takes all of the machine's memory, shows a traceback, touches files
that are none of its business, or leaves half a result.

The numbers come from scripts in `benchmarks/`. `fuzz.py` damages sound files and gives each case a number, from which the
case can be made again.

## Damaged files

`python benchmarks/fuzz.py` takes small sound files of every kind that iosched reads and damages them. These are models,
schedules, profile databases and their exports, studies, results of `bench`, and `iosched.toml`. It damages them in five ways:

- It flips, overwrites, cuts out, doubles and moves bytes.
- It changes single fields of models.
- It edits graphs in ways that mostly leave a valid model.
- It moves operators and stages of schedules to other places.
- It replaces single values in schedules, tables of databases, exports and results.

Then it runs a command on the damaged file. Each row of the table is a kind of file. The columns say how many cases there were,
how many ended with each exit code, and how many broke a rule. The cases are those of seed {seed}, with {fuzz_versions}:

{fuzz_table}

Each case runs in a process of its own. A case breaks a rule if one of these happens:

- It ends by a signal, shows a traceback, or says "internal error".
- Its exit code is none of those that are documented.
- Its error has no line at all, or more than five.
- It takes more than ten seconds of processor time, or more than a minute by the clock.
- Its memory grows by more than a gigabyte.
- It starts a process, opens a connection, or touches a file outside of the folders that it was given. This is seen as far
  as it goes through Python.

The commits whose code ran the cases:

{commits}
{again}

{lines}. The longest case took {most_cpu_s} seconds of processor time. The largest took {most_mib} MiB more
than an idle process. {ran} of the {models} models were sound enough to be run, and so were {scheduled} of the schedules. The
tests run the first 3 % of the cases of each kind again, there with `optimize --strict` on the CPU: a plan of iosched that
fails, or computes something else than onnxruntime, also breaks a rule there.

What earlier runs had found is mended, and has tests. The cases that had broken a rule were run again with the mended code.
The faults were these:

- Some files ended with an internal error: sizes of tensors that no machine has, batches of no images on a planned GPU, models
  of texts in `batch`, opsets far below zero, and rows of a database without a date.
- Weights of sparse initializers were looked for in the working folder.
- `optimize -o` put a file in the place of a device such as `/dev/null`.
- On a machine that was busy with other work, three cases took more than ten seconds of processor time. They go on with a
  damaged study in `explore`, which searches for the best variants and measures a stage anew if it was disturbed. The script
  now has one variant written, so that a case is shorter.

## Tried by hand

What no script damages was tried by hand, on each command that reads it.

- **Models that unfold.** Functions that call functions stood for 10^8 nodes in a file of two kilobytes, and a vector was joined to
  itself forty times. Both took gigabytes until they were stopped after a minute. The first is refused now, above 200,000
  nodes. The values of vectors are no longer followed in a model that has more than a million elements of them. Large
  constants, and large results of `Expand`, `Tile`, `Range`, `OneHot`, `Pad` and `Resize`, were compared with the free memory
  before, and still are. A loop of 2^62 rounds runs on and on, as above.
- **Names.** Names with escape sequences of terminals, new lines, HTML and marks of direction had no effect in `show`,
  `explain`, `inspect` and `run`. `run` ends with exit code 1 at a name with a null character. A file whose name is not UTF-8 ended with an
  internal error, and is refused by name now.
- **What is no file.** Named pipes, devices, folders and links in a circle were given as models, schedules, inputs, outputs and
  databases. Links in a circle ended with an internal error, which is mended. `/dev/zero` on standard input was read until no
  memory was left; now it is refused after 2 GB. An output that is a link is replaced by a file, and what the link leads to
  stays as it was. `-o` to a named pipe waits until somebody reads it.
- **JSON** with a million nested lists or objects, NaN, a number of 5,000 digits, keys that stand twice, halves of characters,
  and other encodings is refused in one line.
- **Databases** with triggers, views, generated columns and virtual tables were opened. A view without an end kept
  `profile stats` busy for 22 seconds, until it had written the 2 GB that it was allowed. Such databases are refused now.
- **Streams.** Where stdin, stdout or stderr was closed (`>&-`), commands ended with an internal error. A closed stream now
  stands for /dev/null. Full disks behind stdout are told of, with exit code 1.
- **Limits.** Six open files, a stack of 256 KiB, a working folder that was deleted, no home, no folder for temporary files, and
  odd values of `COLUMNS`, `TZ`, `PYTHONIOENCODING` and the umask led to no internal error.
- **Inputs.** A `.npy` file with a pickle inside, with a header of ten million characters or with a shape of 10^12 elements, and
  a zip bomb as `.npz`, are refused in two lines. Nothing is unpickled.

## Files from strangers

- **Weights in other files** are read from the model's folder and from nowhere else. A path with `..`, an absolute path, and a
  link that leads out of the folder are refused. This holds even if somebody puts a link in place between the check and the
  reading. If a model runs unchanged, onnxruntime opens its file itself, and has a check of its own.
- **Schedules** are read strictly, in files and inside models. Every key must have its type and lie in its range. Numbers must
  lie below 10^18, no operator may occur twice, and every lane must exist. A schedule that does not fit the model is refused.
- **Sizes** are checked before memory is taken. The size of a tensor is compared with the bytes that the file has for it. What
  an operator reads and writes is compared with the memory that is free, and too much of it is an error with exit code 3.
- **Not promised:** iosched is no sandbox. Libraries that read a model, such as onnxruntime, run in the same process and with
  its rights. A model from a stranger may take as long as it likes to run. A file of weights that is cut off while a model
  runs ends the process, since the file is mapped into memory.

## A machine that fails

`python benchmarks/faults.py` takes away what commands need, one thing at a time. Each row of the table is one such thing. The
columns say how many commands were run, how many ended with each exit code, and how many broke one of the rules above.

{fault_table}

An exit code other than 0 comes with a line that says what is short. A library may report this by other words, as
"std::bad_alloc" or "pthread_create failed". Then the line does not put the blame on the model.

**Killed searches.** {kills} searches were to be killed by SIGKILL. For half of them the moment was drawn at random from the
{search_s} seconds that a search takes. For the other half it was up to 10 ms after a measurement, or after one was kept in
the profile database. {killed} searches were killed, and the others had ended before. This was found afterwards:

- {kept} measurements had been kept until then. {bad} of the searches left a damaged profile database, lost one of these
  measurements, lost more than the one that was under way, or left half an output file.
- {whole} output files were there, each of them whole.
- {left_files} temporary files were left beside the outputs.
- {left_folders} folders `iosched-*` were left in the folder for temporary files, which the system clears.

**Killed while measuring.** {amid}

**Two writers.** Two commands at a time wrote the same output files and the same profile database. This was done
{rounds} times. {writers} Each file is that of one command as a whole, but the model may be that of one command and
the schedule file beside it that of the other.

**A kernel that fails** stops all lanes, and the error has onnxruntime's words. The executor can be used again afterwards
(`tests/runtime/cpu/test_executors.py`).

**A clock that jumps** does no harm, since durations are taken from clocks that do not jump. The clock of the day has two
uses. It dates files, and it tells processes that share a study whether one of them has gone silent.

## For a long time

`python benchmarks/soak.py` looks for memory that grows and for results that become wrong. It ran a small network on {machine}:

- One plan was run {runs} times on two threads. The process grew by {runs_kib} KiB after the first tenth of the runs.
  {runs_wrong} results were wrong.
- A model was loaded, run and closed {loads} times. The process grew by {loads_kib} KiB after the first tenth, to
  {resident_mib} MiB in all. That is {kib_each} KiB for each load.
- {threads} threads ran one model at the same time, {thread_runs} times each, on inputs of their own. {threads_wrong} results
  were wrong.

What grows when a model is loaded was looked for with longer series, each in a process of its own (`--kind read sessions
loaded`). A load opens two sessions of onnxruntime, beside the executor. "In use" is what the C library has given out
and not got back (mallinfo2). Small objects are those of Python.

{growth}

{growth_says}

## ONNX's own cases

ONNX comes with test cases for its operators. `python benchmarks/backend_suite.py` runs those whose results are not random
({suite_versions}), and compares what iosched computes with what onnxruntime computes. There are {cases} such
cases, of which onnxruntime runs {suite_runs}. Of these

- {by_plan} run by a plan of iosched, with the same results;
- {whole_cases} are run as a whole by onnxruntime, since they have sizes that only a run tells, sequences or texts;
- {refused} are refused;
- {differs} give other results.
{refusals}
The other {left_out} cases are left out: {left_out_for}. These are the reasons:

{reasons}
"""


def main() -> None:
    names = ("fuzz", "faults", "soak", "onnx-backend")
    print(page(*(json.loads((RESULTS / f"{name}.json").read_text()) for name in names)), end="")


if __name__ == "__main__":
    main()
