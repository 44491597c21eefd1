"""Measures one case in a process of its own, which `gpu.py` starts.

The work without a GPU (imports, models, references) is done first, while another case may have the GPU. After each
step, results are written to `running.json` of the folder, where `gpu.py` finds them however the process ends.

Options:
    case: its key in gpu_cases.py
    --expected: required name of the GPU
    --output: folder of the results and the profile database
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from command_line import read_options
from gpu_cases import ROOT, Case, case_of
from results_files import keep_results, known_results

from iosched.jobs.selftest import CheckResult, selftest
from iosched.models.errors import DeviceError, DeviceLostError, IoschedError
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.profiler.devices.cuda.device import about
from iosched.profiler.devices.cuda.facts import cuda_facts
from iosched.profiler.devices.facts import installed
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.reference import SelfCheck

RESULTS, RUNNING, DATABASE = "results.json", "running.json", "profile.db"
NO_GPU = 3
"""Exit code without a GPU, or with another one than the results are of."""

LINES = 15
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "onnx", "torch", "tensorrt", "tensorrt-cu13", "tensorrt-cu12", "numpy")
UNFINISHED = "did not come back"


@dataclass
class Session:
    """A case, its folder, and its results so far.

    Attributes:
        found: its results, with those of earlier attempts.
        deadline: of `time.monotonic`; known once it is the case's turn.
    """

    case: Case
    options: Namespace
    found: dict[str, Any]
    deadline: float = float("inf")
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where all results are."""
        return Path(self.options.output)

    def wait(self) -> None:
        """Waits for the case's turn; from then on, the process and its children end with `gpu.py`."""
        if self.deadline == float("inf"):
            self.deadline = float(sys.stdin.readline() or os._exit(1))
            threading.Thread(target=_end_with_parent, daemon=True).start()

    @cached_property
    def gpu(self) -> AttachedGpu:
        """The GPU; waits for the case's turn.

        Raises:
            SystemExit: there is none, or it is not the expected one.
        """
        self.wait()
        return self.attach()

    def attach(self) -> AttachedGpu:
        """The GPU."""
        try:
            gpu = attach(self.options.gpu)
        except DeviceError as error:
            print(f"nothing to measure on: {error}", file=sys.stderr)
            raise SystemExit(NO_GPU) from error
        if self.options.expected not in ("", gpu.name):
            print(f"the results are of {self.options.expected}, but here is {gpu.name}: give another --output")
            raise SystemExit(NO_GPU)
        self.found |= {"gpu": gpu.name, "about": {**about(gpu), **installed(PACKAGES)}}
        return gpu

    @cached_property
    def database(self) -> ProfileDatabase:
        """The database of all cases, also of earlier calls."""
        return ProfileDatabase(self.folder / DATABASE)

    def keep(self, *, complete: bool = False, error: str = "") -> None:
        """Writes the results so far."""
        self.wait()
        found = {**self.found, "seconds": self.seconds, "complete": complete}
        record = {"key": self.case.key, "found": found, "error": error}
        keep_results(self.folder / RUNNING, record, command=self.options.command)

    def each(self, table: str, keys: Sequence[str], measure: Callable[[str], dict[str, Any]]) -> None:
        """Fills `found[table]`: first items never tried, then those that failed in an earlier attempt.

        Raises:
            DeviceLostError: the GPU is lost.
        """
        rows = self.found.setdefault(table, {})
        for key in sorted((key for key in keys if "failed" in rows.get(key, {"failed"})), key=rows.__contains__):
            rows[key] = {"failed": UNFINISHED}
            self.keep()
            try:
                rows[key] = measure(key)
            except DeviceLostError as error:
                rows[key] = {"failed": said(error)}
                raise
            except (IoschedError, MemoryError, RuntimeError, ValueError) as error:
                rows[key] = {"failed": said(error)}
        failed = [key for key in keys if "failed" in rows[key]]
        if failed:
            error = f"{len(failed)} of {len(keys)} failed, first {failed[0]}: {rows[failed[0]]['failed']}"
            self.keep(error=error)
            raise SystemExit(1)
        self.keep(complete=True)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds to the seconds of a step."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[step] = round(self.seconds.get(step, 0.0) + time.monotonic() - began, 2)


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".strip(": ").splitlines()[0][:300]


def _end_with_parent() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def environment(session: Session) -> None:
    """The machine, its packages, and the self-test check by check."""
    session.wait()
    query = ["nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY,ECC,COMPUTE"]
    try:
        smi = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        smi = [said(error)]
    session.found |= {"nvidia-smi": smi, "devices": dict(cuda_facts().rows)}
    session.keep()
    gpu = session.attach()
    found = selftest(f"cuda:{gpu.index}", _Watcher(session))
    session.found |= {"checking": "", "self-test": found.summary}
    if found.failure is not None:
        raise found.failure
    session.keep(complete=True)


@dataclass
class _Watcher:
    session: Session

    def began(self, check: SelfCheck) -> None:
        self.session.found["checking"] = f"{check.part}: {check.name}"
        self.session.keep()

    def ended(self, result: CheckResult) -> None:
        pass


def command(session: Session) -> None:
    """Runs a command; its last lines are kept."""
    gpu = session.gpu
    values = {"gpu": gpu.index, "database": session.folder / DATABASE, "folder": session.folder}
    words = [sys.executable, *(word.format(**values) for word in session.case.words)]
    with session.timed("all"):
        done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    session.found["printed"] = done.stdout.splitlines()[-LINES:]
    last = [line.strip("= ") for line in session.found["printed"] if line.strip()][-1:]
    error = f"exit code {done.returncode}: {' '.join(last)}" if done.returncode else ""
    session.keep(complete=not error, error=error)


def main(words: Sequence[str] | None = None) -> int:
    """Measures the case; the exit code is 0 if it finished."""
    options = read_options(__file__, words, {"case": str}, gpu=0, expected="", output={"type": Path, "required": True})
    case = case_of(options.case)
    entry = known_results(options.output / RESULTS).get("cases", {}).get(case.key) or {}
    session = Session(case, options, dict(entry.get("found") or {}))
    module, _, name = case.measure.rpartition(".")
    try:
        getattr(import_module(module), name)(session)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:  # noqa: BLE001  # costs only this case
        traceback.print_exc()
        session.keep(error=said(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.modules["gpu_case"] = sys.modules["__main__"]
    ended = partial(os._exit, main())  # freeing memory of a lost GPU may hang
    sys.stdout.flush()
    sys.stderr.flush()
    ended()
