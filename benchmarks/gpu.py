"""Evidence for one GPU, V100 to B200: correctness, latencies next to other programs, a fit of the analytic model.

    python benchmarks/gpu.py --evidence --seconds 540    # pieces in the order of their value; again: what is missing
    python benchmarks/gpu.py --list                      # pieces, estimated seconds, and what is missing
    python benchmarks/gpu.py --piece outputs             # one of them

A later call needs only the folder of `--output`: `results.json`, written after each case, `profile.db`, and `report.md`
with tables of the results so far. On a machine that keeps nothing, restore the folder before the next call. Each case
has a process of its own, so a lost GPU or a hang costs one case, which is repeated after all others, twice at most.
While one case has the GPU, the next one imports and builds. It needs the extra [cuda]. TensorRT and PyTorch are
compared if they are installed; otherwise the report has the reasons.

Options:
    --piece: only this one; more than once for several
    --seconds: no case begins that would take longer, by estimate, and none continues
    --gpu: its number in CUDA
    --output: folder of results
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from command_line import read_options, refuse
from gpu_cases import MOST_S, PIECES, ROOT, Case
from gpu_report import FORMAT, VERSION, case_row, known_cases, page
from results_files import keep_results, known_results

CASE = (sys.executable, str(Path(__file__).with_name("gpu_case.py")))
RESULTS, RUNNING, DATABASE = "results.json", "running.json", "profile.db"
NO_GPU = 3
"""Exit code of a case without a GPU, or with another one than the results are of."""

MOST_ATTEMPTS = 3
MOST_TIMES, START_S = 2.0, 60.0
"""A case is ended after n times its estimate, plus the time of imports on a machine with cold files."""

CLOSING_S = 5.0
_STDERR = 2
ABOUT = {"complete", "seconds", "gpu", "about"}
"""Keys of the findings that are not results."""


class NoGpuError(Exception):
    """There is no GPU to measure on; the message is that of the case's process."""


@dataclass(frozen=True, eq=False)
class Results:
    """The results so far, by the keys of the cases.

    An entry has "state" ("begun", "done", "partial" with some of it, "failed"), "attempts", "reasons" (of attempts that
    did not finish) and "found".
    """

    folder: Path
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Results:
        """The results in the folder, including those of a case that ran when the machine was lost.

        Raises:
            ValueError: a file there has other content.
        """
        found = cls(folder, dict(known_cases(folder)))
        found.take(found.cases.get(known_results(folder / RUNNING).get("key", ""), {}))
        return found

    @property
    def gpu(self) -> str:
        """The GPU of the results; empty before the first one."""
        return next((gpu for each in self.cases.values() if (gpu := (each["found"] or {}).get("gpu"))), "")

    def state(self, case: Case) -> str:
        """The state of the case; empty if it never began."""
        return str(self.cases.get(case.key, {}).get("state", ""))

    def missing(self, cases: Sequence[Case]) -> list[Case]:
        """Cases to measure: those with the fewest attempts first, so that none blocks others."""
        attempts = {case: self.cases.get(case.key, {}).get("attempts", 0) for case in cases}
        left = [case for case in cases if self.state(case) != "done" and attempts[case] < MOST_ATTEMPTS]
        return sorted(left, key=attempts.__getitem__)

    def begin(self, case: Case) -> None:
        """Notes the attempt, in case this call never returns."""
        entry = self.cases.setdefault(case.key, {"attempts": 0, "reasons": [], "found": None})
        entry |= {"state": "begun", "attempts": entry["attempts"] + 1}
        self.write()
        (self.folder / RUNNING).unlink(missing_ok=True)

    def take(self, entry: dict[str, Any]) -> str:
        """Moves the results of the case's process into its entry, and returns the reason of its end."""
        record = known_results(self.folder / RUNNING)
        if entry and record and (record["found"]["complete"] or not (entry["found"] or {}).get("complete")):
            entry["found"] = record["found"]
        return str(record.get("error", ""))

    def end(self, case: Case, reason: str) -> None:
        """Records how the attempt ended: `reason` is empty if it finished."""
        entry = self.cases[case.key]
        reason = self.take(entry) or reason
        entry["reasons"] += [reason] if reason else []
        found = entry["found"] or {}
        entry["state"] = "done" if found.get("complete") else "partial" if found.keys() - ABOUT else "failed"
        self.write()

    def forget(self, case: Case) -> None:
        """Undoes the last `begin` of a case that could not start; its facts about the machine are kept."""
        self.cases[case.key]["attempts"] -= 1
        self.end(case, "")
        if not self.cases[case.key]["found"]:
            del self.cases[case.key]
        self.write()

    def write(self) -> None:
        """Writes all of it."""
        content = {"format": FORMAT, "version": VERSION, "cases": self.cases}
        keep_results(self.folder / RESULTS, content, rivals=("torch",), goes_on=True)


@dataclass(frozen=True, eq=False)
class Child:
    """The process of a case. It has a process group of its own, so that what it starts ends with it."""

    process: subprocess.Popen[bytes]

    @classmethod
    def of(cls, case: Case, results: Results, gpu: int, command: Sequence[str]) -> Child:
        """Starts the case, which leaves the GPU alone until `go`."""
        words = [case.key, "--gpu", str(gpu), "--expected", results.gpu, "--output", str(results.folder)]
        process = subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=_STDERR, process_group=0, cwd=ROOT)
        return cls(process)

    def go(self, limit_s: float) -> str:
        """Gives the GPU to the case for a time; returns why it did not finish, or an empty string.

        Raises:
            NoGpuError: there is no GPU, or it is not the same as before.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its exit code is the reason
            self.process.stdin.write(f"{time.monotonic() + limit_s - CLOSING_S:.1f}\n".encode())
            self.process.stdin.flush()
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s"
        if code == NO_GPU:
            raise NoGpuError
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}" if code else ""

    def stop(self) -> None:
        """Ends the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


Begin = Callable[[Case], Child]


def measure(
    cases: Sequence[Case],
    results: Results,
    begin: Begin,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Measures missing `cases` one after another, for at most that number of seconds.

    Raises:
        NoGpuError: there is no GPU, or it is not the same as before.
    """
    deadline = clock() + seconds
    ready: dict[Case, Child] = {}
    try:
        while queue := [case for case in results.missing(cases) if case.seconds <= deadline - clock()]:
            case, child = queue[0], ready.pop(queue[0], None) or begin(queue[0])
            for other in [*ready]:
                ready.pop(other).stop()
            ready |= {other: begin(other) for other in queue[1:2]}
            with _attempt(case, child, results):
                limit_s = min(MOST_TIMES * case.seconds + START_S, deadline - clock(), MOST_S)
                _say(f"{case.key}: {case.seconds:.0f} s, at most {limit_s:.0f} s")
                results.end(case, child.go(limit_s))
            _say(case_row(case.key, results.cases[case.key]))
    finally:
        for child in ready.values():
            child.stop()


@contextmanager
def _attempt(case: Case, child: Child, results: Results) -> Iterator[None]:
    results.begin(case)
    try:
        yield
    except NoGpuError:
        results.forget(case)
        raise
    except KeyboardInterrupt:
        child.stop()
        results.end(case, "interrupted")
        raise
    finally:
        child.stop()


def main(words: Sequence[str], command: Sequence[str] = CASE) -> int:
    """Measures the requested pieces; the exit code is 3 without a GPU, and 1 if a case failed."""
    pieces = {"action": "append", "choices": tuple(PIECES)}
    options = read_options(
        __file__, words, evidence=False, piece=pieces, list=False, seconds=float("inf"), gpu=0, output=Path("evidence")
    )
    if sum(map(bool, (options.evidence, options.piece, options.list))) != 1:
        refuse("ask for one of --evidence, --piece and --list")
    try:
        results = Results.of(options.output.resolve())
    except ValueError as error:
        refuse(str(error))
    if options.list:
        print("\n".join(_listed(results)))
        return 0
    return _measured(options, results, command)


def _measured(options: Namespace, results: Results, command: Sequence[str]) -> int:
    cases = [case for name in options.piece or PIECES for case in PIECES[name].cases]
    signal.signal(signal.SIGTERM, _terminated)
    results.folder.mkdir(parents=True, exist_ok=True)
    try:
        measure(cases, results, lambda case: Child.of(case, results, options.gpu, command), options.seconds)
    except NoGpuError:
        return NO_GPU
    except KeyboardInterrupt:
        _say("interrupted; what was measured is kept")
        return 130
    finally:
        (results.folder / "report.md").write_text(page(results.cases), encoding="utf-8")
    left = [case.key for case in cases if results.state(case) != "done"]
    _say(f"missing: {', '.join(left)}" if left else "all measured")
    return 1 if any(results.state(case) in ("partial", "failed") for case in cases) else 0


def _listed(results: Results) -> list[str]:
    lines = [f"{'piece':18s} {'done':>6s} {'about':>7s}"]
    for piece in PIECES.values():
        done = sum(results.state(case) == "done" for case in piece.cases)
        lines.append(f"{piece.name:18s} {done:3d}/{len(piece.cases):<2d} {piece.seconds:5.0f} s  {piece.about}")
        entries: Mapping[str, Any] = {case.key: results.cases[case.key] for case in piece.cases if results.state(case)}
        lines += [f"    {case_row(key, entry)}" for key, entry in entries.items() if entry["state"] != "done"]
    return lines


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
