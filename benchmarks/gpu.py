"""Everything on one GPU, in pieces that fit a machine whose calls are cut off at ten minutes.

    python benchmarks/gpu.py --first            # under three minutes: the four networks in fp32 and fp16, batch 1
    python benchmarks/gpu.py --list             # all pieces, how long each takes, and what is missing
    python benchmarks/gpu.py --piece tests      # one of them; called again it measures only what is missing
    python benchmarks/gpu.py --all              # the next ones, in the order of their value, for nine minutes
    python benchmarks/gpu_report.py benchmarks/results/gpu.json         # tables of all that was measured so far

Every case is measured in a process of its own, so that a GPU that is lost there costs one case. The results file is
written after every step of every case. A case that ended its process is tried again after all others, twice at most.
All alternatives of a case are measured in turn in one process, A B C A B C; while one case has the GPU, the network of
the next is built. Beside the results lies a profile database (gpu.db), from which a later call goes on with a search:
on a machine that keeps nothing between calls, bring both back. Needs what the extra [cuda] installs, and PyTorch, JAX
and onnxruntime's CUDA provider for the ways that these are.
"""

from __future__ import annotations

import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gpu_cases import CALL_S, PIECES, Case, key_of
from gpu_child import CASE, NO_GPU, Child, Children, NoGpuError
from gpu_report import case_row
from gpu_results import Results, ResultsError, load_results
from testbed import read_options, refuse

RESULTS = Path(__file__).parent / "results" / "gpu.json"

LEAST_PART = 0.5
"""No case is begun in less than this part of the time that it is estimated to take."""

MOST_TIMES = 2.0
"""A case is ended when it has taken n times as long as it should, if others wait for the time."""


CLOSING_S = 4.0
"""Left at the end, so that nothing which is nearly done is cut off."""


def main(words: Sequence[str], command: Sequence[str] = CASE) -> int:
    """Runs what is asked for; the exit code is 3 where there is no GPU, and 1 where a case failed."""
    pieces = {"action": "append", "choices": tuple(PIECES)}
    options = read_options(
        __file__, words, first=False, piece=pieces, all=False, list=False, only="", seconds=float, again=False, gpu=0,
        profile_db=Path, output=RESULTS,
    )  # fmt: skip
    if sum(map(bool, (options.first, options.piece, options.all, options.list))) != 1:
        refuse("ask for one of --first, --piece, --all and --list")
    try:
        results = load_results(options.output)
    except ResultsError as error:
        refuse(str(error))
    if options.list:
        print("\n".join(_listed(results)))
        return 0
    cases = _chosen(options)
    if not cases:
        refuse("no such case: --list tells the pieces")
    if options.again:
        results.again(cases)
    database = options.profile_db or options.output.with_suffix(".db")
    folder = options.output.parent.resolve()
    children = Children(options.gpu, lambda: results.gpu, database.resolve(), folder, command)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        measure(cases, results, children, _seconds(options))
    except NoGpuError:
        return NO_GPU
    except KeyboardInterrupt:
        _say("interrupted; what was measured is kept")
        return 130
    left = [key_of(case) for case in cases if results.state(case) != "done"]
    print("\n".join(case_row(results.cases[key_of(case)]) for case in cases if key_of(case) in results.cases))
    _say(f"missing: {', '.join(left)}" if left else "all measured")
    return 1 if any(results.state(case) == "failed" for case in cases) else 0


def measure(
    cases: Sequence[Case],
    results: Results,
    children: Children,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Measures what is missing of `cases` for at most that number of seconds, one after another.

    What did not come to its end is tried again when all others had their turn, if there is time.

    Raises:
        NoGpuError: there is no GPU, or it is another one than before.
    """
    deadline = clock() + seconds
    while (waiting := results.missing(cases)) and _measure_once(waiting, results, children, deadline, clock):
        pass


def _measure_once(
    cases: Sequence[Case], results: Results, children: Children, deadline: float, clock: Callable[[], float]
) -> int:
    """Gives each of `cases` one turn as far as there is time, and returns how many had one."""
    queue, count = _Queue(cases, children), 0
    try:
        while (left_s := deadline - clock()) > 0 and queue.waits(left_s):
            child = queue.prepared(left_s)
            share_s, limit_s = queue.share(max(deadline - clock(), 0.0))
            _measure_one(queue.next(), child, results, share_s, limit_s)
            count += 1
    finally:
        queue.close()
    return count


def _measure_one(case: Case, child: Child, results: Results, seconds: float, limit_s: float) -> None:
    _say(f"{key_of(case)}: {seconds:.0f} s")
    results.begin(case)

    def kept(record: Mapping[str, Any]) -> None:
        results.keep(case, record)
        _say(case_row(results.cases[key_of(case)]))

    try:
        reason = child.go(seconds, limit_s, kept)
    except NoGpuError:
        results.forget(case)
        raise
    except KeyboardInterrupt:
        results.end(case, "interrupted")
        raise
    finally:
        child.stop()
    results.end(case, reason)
    if reason:
        _say(f"{key_of(case)}: {reason}")


class _Queue:
    """Cases that wait, of which the next one is prepared already."""

    def __init__(self, cases: Sequence[Case], children: Children) -> None:
        self._cases, self._children = list(cases), children
        self._prepared: dict[str, Child] = {}

    def waits(self, left_s: float) -> bool:
        """Whether there is a case that fits into the time that is left; those before it that do not are left out."""
        while self._cases and self._cases[0].estimate_s * LEAST_PART > left_s:
            _say(f"{key_of(self._cases[0])}: no time left for it")
            self._stop(self._cases.pop(0))
        return bool(self._cases)

    def prepared(self, most_s: float) -> Child:
        """The process of the next case, once it has nothing left to do that needs no GPU."""
        key = key_of(self._cases[0])
        child = self._prepared[key] = self._prepared.get(key) or self._children.begin(self._cases[0])
        child.prepare(most_s)
        return child

    def share(self, left_s: float) -> tuple[float, float]:
        """The next case's share of the time, and when it is to be ended in any case.

        The time is shared in proportion to the estimates by those cases that fit into it.
        """
        fits, total_s = 0, 0.0
        while fits < len(self._cases) and (fits == 0 or total_s + self._cases[fits].estimate_s <= left_s):
            total_s += self._cases[fits].estimate_s
            fits += 1
        share_s = max(left_s - CLOSING_S, 0.0) * self._cases[0].estimate_s / total_s
        return share_s, left_s if fits == 1 else min(left_s, MOST_TIMES * share_s)

    def next(self) -> Case:
        """Takes the next case out, and starts to prepare the one behind it."""
        case = self._cases.pop(0)
        del self._prepared[key_of(case)]
        if self._cases:
            self._prepared[key_of(self._cases[0])] = self._children.begin(self._cases[0])
        return case

    def close(self) -> None:
        """Ends the processes that were only prepared."""
        for case in self._cases:
            self._stop(case)

    def _stop(self, case: Case) -> None:
        if child := self._prepared.pop(key_of(case), None):
            child.stop()


def _chosen(options: Namespace) -> list[Case]:
    names = ["first"] if options.first else options.piece or list(PIECES)
    wanted = options.only.split()
    cases = [case for name in names for case in PIECES[name].cases]
    return [case for case in cases if set(wanted) <= set(case.name.split())]


def _seconds(options: Namespace) -> float:
    if options.seconds is not None:
        return float(options.seconds)
    names = ["first"] if options.first else options.piece or []
    return min(CALL_S, sum(PIECES[name].seconds for name in names) or CALL_S)


def _listed(results: Results) -> list[str]:
    lines = [f"{'piece':18s} {'done':>6s} {'about':>7s} {'most':>7s}"]
    for piece in PIECES.values():
        done = sum(results.state(case) == "done" for case in piece.cases)
        counts = f"{done:3d}/{len(piece.cases):<2d}"
        lines.append(f"{piece.name:18s} {counts} {piece.estimate_s:5.0f} s {piece.seconds:5.0f} s  {piece.about}")
        for case in piece.cases:
            if results.state(case) not in ("", "done"):
                reasons = results.cases[key_of(case)]["reasons"]
                lines.append(f"    {case.name}: {results.state(case)}, {'; '.join(reasons) or 'never came back'}")
    return lines


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
