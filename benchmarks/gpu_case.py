"""Measures one network on one GPU, in a process of its own that `gpu.py` starts.

What needs no GPU comes first: imports, the network, what onnxruntime makes of it on the host, a schedule by the
analytic model. Then it waits until it is told how long it may take. What was found is written to a pipe as a line of
JSON after each step: our schedules that need no search beside other frameworks, and then all of these once more with
what was searched for in the time that is left.

Options:
    case: its key in gpu_cases.py
    --expected: the name that the GPU must have
    --pipe: number of the open file that records go to
    --lock: file to lock while the host's cores are needed
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

from gpu_alternatives import CaseRun
from gpu_cases import NetworkCase, case_of
from gpu_child import ERROR, NO_GPU, READY
from gpu_prepare import alone, prepare
from testbed import read_options

from iosched.models.errors import DeviceError, IoschedError
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.profiler.store.database import ProfileDatabase

NEEDED = {"type": Path, "required": True}


def main(words: Sequence[str], attached: Callable[[int], AttachedGpu] = attach) -> int:
    """Prepares, waits, measures; the exit code is that of the process."""
    options = read_options(
        __file__, words, {"case": str}, gpu=0, expected="", pipe={"type": int, "required": True}, profile_db=NEEDED,
        lock=NEEDED,
    )  # fmt: skip
    case = case_of(options.case)
    assert isinstance(case, NetworkCase)
    with options.lock.open("rb") as lock:
        with alone(lock):
            prepared = prepare(case, options.expected)
        os.write(options.pipe, f"{READY}\n".encode())
        told = sys.stdin.readline()
        if not told:  # whoever started this is gone
            return 1
        deadline = float(told)  # of the clock that all processes have
        gpu = _gpu(attached, options)
        if gpu is None:
            return NO_GPU
        with os.fdopen(options.pipe, "w", encoding="utf-8") as pipe, ProfileDatabase(options.profile_db) as database:
            return _told(lambda: CaseRun(case, prepared, gpu, database, deadline, lock), pipe)


def _gpu(attached: Callable[[int], AttachedGpu], options: Namespace) -> AttachedGpu | None:
    """The GPU, if it is there and the one that it should be; else stderr says why not."""
    try:
        gpu = attached(options.gpu)
    except DeviceError as error:
        print(f"nothing to measure on: {error}", file=sys.stderr)
        return None
    if options.expected in ("", gpu.name):
        return gpu
    print(f"the results are of {options.expected}, and here is {gpu.name}: give another file with -o", file=sys.stderr)
    return None


def _told(run: Callable[[], CaseRun], pipe: IO[str]) -> int:
    """Writes what is found, or why nothing more is."""
    try:
        with closing(run()) as case:
            for record in case.records():
                print(json.dumps(record), file=pipe, flush=True)
    except (IoschedError, MemoryError) as error:
        print(json.dumps({ERROR: f"{type(error).__name__}: {error}"}), file=pipe, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
