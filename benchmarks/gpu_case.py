"""Measures one network on one GPU, in a process of its own that `gpu.py` starts.

What needs no GPU comes first: imports, the network, what onnxruntime makes of it on the host, a schedule by the
analytic model. Then it waits until it is told how long it may take. What was found is written to a pipe as a line of
JSON after each step: our schedules that need no search beside other frameworks, and then all of these once more with
what was searched for in the time that is left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

from gpu_alternatives import CaseRun
from gpu_cases import NetworkCase, case_of
from gpu_child import ERROR, NO_GPU, READY
from gpu_prepare import Prepared, alone, prepare

from iosched.models.errors import DeviceError, IoschedError
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.profiler.store.database import ProfileDatabase


def main(words: Sequence[str], attached: Callable[[int], AttachedGpu] = attach) -> int:
    """Prepares, waits, measures; the exit code is that of the process."""
    options = _options(words)
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
        with os.fdopen(options.pipe, "w", encoding="utf-8") as pipe:
            return _told(case, prepared, gpu, options.profile_db, deadline, lock, pipe)


def _gpu(attached: Callable[[int], AttachedGpu], options: argparse.Namespace) -> AttachedGpu | None:
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


def _told(
    case: NetworkCase,
    prepared: Prepared,
    gpu: AttachedGpu,
    path: Path,
    deadline: float,
    lock: IO[bytes],
    pipe: IO[str],
) -> int:
    """Writes what is found, or why nothing more is."""
    with ProfileDatabase(path) as database:
        try:
            with closing(CaseRun(case, prepared, gpu, database, deadline, lock)) as run:
                for record in run.records():
                    print(json.dumps(record), file=pipe, flush=True)
        except (IoschedError, MemoryError) as error:
            print(json.dumps({ERROR: f"{type(error).__name__}: {error}"}), file=pipe, flush=True)
            return 1
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", help="its key in gpu_cases.py")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--expected", default="", help="the name that the GPU must have")
    parser.add_argument("--pipe", type=int, required=True, help="number of the open file that records go to")
    parser.add_argument("--profile-db", type=Path, required=True)
    parser.add_argument("--lock", type=Path, required=True, help="file to lock while the host's cores are needed")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
