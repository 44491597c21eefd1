"""Counts the barriers of our CUDA kernels whose removal the tests would not detect.

    python benchmarks/barrier_mutations.py [-o benchmarks/results/barrier-mutations.json]

Every kernel of `tests/support/barrier_cases.py` runs without one of its barriers, each in turn, by the means of the
tests: g++'s ThreadSanitizer, and coroutines in several orders. Needs no GPU, and measures nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from results_files import write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

import thread_sanitizer
from barrier_cases import CASES, Case, barriers, without_barrier
from command_line import read_options

SEEDS = range(1, 6)
LAST_OF_A_REDUCTION = "it lets shared memory be used again, and nothing uses it behind"
HARMLESS = dict.fromkeys((("reduce", 2), ("softmax", 5), ("normalize", 5)), LAST_OF_A_REDUCTION)
"""Reasons why a barrier may be removed, by function and place in its source."""


@dataclass(frozen=True)
class Mutation:
    """A case without one of its barriers.

    Attributes:
        barrier: counted from 0 in the order of the source.
        behind: the line of source before it.
        races: whether ThreadSanitizer reported it.
        orders: number of thread orders, of `SEEDS`, with wrong results.
        harmless: why neither had to detect it; empty if one did, or if the reason is unknown.
    """

    case: str
    entry: str
    barrier: int
    behind: str
    races: bool
    orders: int
    harmless: str

    @property
    def is_found(self) -> bool:
        return self.races or self.orders > 0


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(__file__, arguments, output=Path)
    if reason := thread_sanitizer.why_not():
        raise SystemExit(reason)
    found = []
    for name in CASES:
        for mutation in mutations(name):
            found.append(mutation)
            print(described(mutation), flush=True)
    by_races, by_orders = sum(each.races for each in found), sum(each.orders > 0 for each in found)
    print(
        f"{sum(each.is_found for each in found)} of {len(found)} are found: {by_races} by ThreadSanitizer, "
        f"{by_orders} by the orders of threads; {sum(bool(each.harmless) for each in found)} are harmless"
    )
    if options.output:
        compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
        content = {"compiler": compiler.splitlines()[0], "orders": len(SEEDS), "mutations": list(map(asdict, found))}
        write_results(options, content, seeds={"first order": SEEDS[0], "last order": SEEDS[-1]})
    if not all(each.is_found or each.harmless for each in found):
        raise SystemExit("some are neither found nor explained")


def mutations(name: str) -> Iterator[Mutation]:
    whole = CASES[name]()
    for index, behind in enumerate(barriers(whole)):
        case = without_barrier(whole, index)
        races = bool(thread_sanitizer.launch(case.call, case.tensors))
        orders = sum(is_wrong(case, seed) for seed in SEEDS)
        harmless = "" if races or orders else HARMLESS.get((case.call.entry, index), "")
        yield Mutation(name, case.call.entry, index, behind, races, orders, harmless)


def is_wrong(case: Case, seed: int) -> bool:
    try:
        case.run_in_turn(seed)
    except AssertionError:
        return True
    return False


def described(mutation: Mutation) -> str:
    ways = ["ThreadSanitizer"] if mutation.races else []
    ways += [f"{mutation.orders} of {len(SEEDS)} orders"] if mutation.orders else []
    said = f"found by {' and '.join(ways)}" if ways else mutation.harmless or "NOT FOUND"
    return f"{mutation.case}, barrier {mutation.barrier} behind `{mutation.behind}`: {said}"


if __name__ == "__main__":
    main()
