"""Runs one command of iosched in a forked child, in a folder of its own, and reports violations.

A fork takes a millisecond where a new process takes a second. The parent may have no session of onnxruntime, since the
children would lack its threads.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

EXIT_CODES = frozenset({0, 1, 2, 3, 4})
STAGES = ("begun", "parsed", "loaded", "running", "ran")
MAX_CPU_SECONDS = 10.0
MAX_SECONDS = 60.0  # wall-clock time: other processes may use the cores meanwhile
MAX_LINES = 5
MAX_GROWTH_NBYTES = 2**30
_ADDRESS_SPACE_NBYTES = 6 * 2**30
_FILE_NBYTES = 2**28
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FILES = ("remove", "rename", "mkdir", "rmdir", "link", "symlink", "truncate", "chmod")
_CHANGES = frozenset(f"os.{name}" for name in _FILES)
_PROCESSES = frozenset(
    {"subprocess.Popen", "os.exec", "os.system", "os.posix_spawn", "socket.connect", "pickle.find_class"}
)


@dataclass(frozen=True)
class Sandbox:
    """The folders of one command: it may write to `work`, its working folder, and to `home` and `tmp`."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def profile(self) -> Path:
        return self.root / "home" / "profile.sqlite"


@dataclass(frozen=True)
class Ending:
    """The end of a command.

    Attributes:
        code: its exit code, or minus the signal that ended it.
        stage: the last step that it reached, of `STAGES`.
        stderr: its whole text.
        stdout_nbytes: size of its output.
        cpu_s: processor time.
        wall_s: wall-clock time.
        grown_nbytes: its peak memory beyond that of the process that it was forked from.
        forbidden: its accesses outside of the sandbox.
    """

    code: int
    stage: str
    stderr: str
    stdout_nbytes: int
    cpu_s: float
    wall_s: float
    grown_nbytes: int
    forbidden: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The error, without the remarks before it."""
        lines = self.stderr.splitlines()
        at = next((index for index, line in enumerate(lines) if line.startswith(("Error:", "Usage:"))), len(lines))
        return "\n".join(lines[at:])

    def faults(self) -> list[str]:
        """Violations of docs/exit-codes.md and of the rules for untrusted files."""
        lines = self.message.splitlines()
        checks = {
            f"ended by signal {-self.code}": self.code < 0,
            "hung": self.cpu_s > MAX_CPU_SECONDS or self.wall_s > MAX_SECONDS,
            f"exit code {self.code}, which no table has": self.code >= 0 and self.code not in EXIT_CODES,
            "traceback": "Traceback" in self.stderr,
            "internal error": "internal error" in self.stderr,
            "a plan of iosched fails": "bug in iosched" in self.stderr,
            "error without a word": self.code > 0 and not lines,
            "error of many lines": len(lines) > MAX_LINES,
            f"memory grew by {self.grown_nbytes >> 20} MiB": self.grown_nbytes > MAX_GROWTH_NBYTES,
            f"touched {self.forbidden[:1]}": bool(self.forbidden),
        }
        return [what for what, is_so in checks.items() if is_so]


def run(
    words: Sequence[str],
    sandbox: Sandbox,
    *,
    prepare: Callable[[], None] = lambda: None,
    kill_after_s: float = MAX_SECONDS,
) -> Ending:
    """Runs `iosched WORDS` in a forked child, with the sandbox's working folder, home and folder for temporary files.

    Args:
        words: the command line.
        sandbox: folders, of which `work` is there already.
        prepare: is called in the child, right before the command.
        kill_after_s: when a child that still runs is killed.
    """
    for name in ("home", "tmp"):
        (sandbox.root / name).mkdir(exist_ok=True)
    before = {path.name for path in sandbox.root.parent.iterdir()}
    shared = mmap.mmap(-1, 65536)
    out, err = sandbox.root / "stdout", sandbox.root / "stderr"
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(words, sandbox, shared, (out, err), prepare)
    status, usage, wall_s = _ended(child, start, kill_after_s)
    said = bytes(shared[1:]).rstrip(b"\0").decode(errors="replace")
    beside = {path.name for path in sandbox.root.parent.iterdir()} - before
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Ending(
        code=os.waitstatus_to_exitcode(status),
        stage=STAGES[shared[0]],
        stderr=err.read_text(errors="replace"),
        stdout_nbytes=out.stat().st_size,
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=wall_s,
        grown_nbytes=max(usage.ru_maxrss - own, 0) * 1024,
        forbidden=(*filter(None, said.split("\0")), *beside),
    )


def _ended(child: int, start: float, kill_after_s: float) -> tuple[int, Any, float]:
    watched = os.pidfd_open(child)
    with suppress(ChildProcessError, ProcessLookupError):
        ready = select.select([watched], [], [], kill_after_s)[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(watched)
    return status, usage, time.monotonic() - start


def _become(
    words: Sequence[str], sandbox: Sandbox, shared: mmap.mmap, outputs: Sequence[Path], prepare: Callable[[], None]
) -> None:
    """Turns the forked child into the command; does not return."""
    code = 99
    try:
        os.setsid()
        _redirect(outputs)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(MAX_CPU_SECONDS) + 5, int(MAX_CPU_SECONDS) + 10))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_NBYTES, _FILE_NBYTES))
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_NBYTES, _ADDRESS_SPACE_NBYTES))
        _settle(sandbox)
        _mark_stages(shared)
        _watch(sandbox, shared)
        prepare()
        sys.argv = ["iosched", *words]
        code = _command()
    finally:
        os._exit(code)


def _redirect(outputs: Sequence[Path]) -> None:
    for number, path in zip((0, 1, 2), (os.devnull, *outputs), strict=True):
        mode = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, mode, 0o600), number)
    for number, stream in ((1, "stdout"), (2, "stderr")):
        setattr(sys, stream, os.fdopen(number, "w", encoding="utf-8"))
    sys.stdin = os.fdopen(0)


def _settle(sandbox: Sandbox) -> None:
    import tempfile

    os.chdir(sandbox.work)
    sys.dont_write_bytecode = True  # a module that is first loaded here
    tempfile.tempdir = None
    home = str(sandbox.root / "home")
    os.environ.update(HOME=home, XDG_CACHE_HOME=home, XDG_CONFIG_HOME=home, TMPDIR=str(sandbox.root / "tmp"))
    os.environ.update(IOSCHED_PROFILE_DB=str(sandbox.profile), COLUMNS="100", IOSCHED_SHARE_CORES="1")


def _command() -> int:
    from iosched.cli.main import main

    try:
        main()
    except SystemExit as ending:
        sys.stdout.flush()
        sys.stderr.flush()
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except BaseException:  # noqa: BLE001 - the traceback that the interpreter would print is a fault
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def _mark_stages(shared: mmap.mmap) -> None:
    import iosched.models.load
    from iosched.runtime.cpu.native import NativeExecutor
    from iosched.runtime.reference import Reference

    def mark(module: ModuleType | type, name: str, before: int, after: int) -> None:
        original = getattr(module, name)

        @wraps(original)
        def marked(*given: Any, **named: Any) -> Any:
            shared[0] = max(shared[0], before)
            found = original(*given, **named)
            shared[0] = max(shared[0], after)
            return found

        setattr(module, name, marked)

    mark(iosched.models.load, "read_proto", 0, 1)
    mark(iosched.models.load, "load_model", 0, 2)
    for executor in (NativeExecutor, Reference):
        for name in ("run", "time"):
            mark(executor, name, 3, 4)


def _watch(sandbox: Sandbox, shared: mmap.mmap) -> None:
    """Records accesses of Python to files outside of the sandbox, and the processes that it starts."""
    own = str(sandbox.root)
    code = (sys.prefix, sys.base_prefix, *sys.path, Path(__file__).parents[1])
    read_too = (own, "/proc", "/sys", "/dev", "/usr", "/lib", *map(os.path.realpath, code))
    state = {"at": 1, "busy": False}

    def report(what: str) -> None:
        text = f"{what}\0".encode(errors="replace")[:500]
        end = min(state["at"] + len(text), len(shared))
        shared[state["at"] : end] = text[: end - state["at"]]
        state["at"] = end

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if state["busy"]:
            return
        state["busy"] = True
        try:
            if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
                writes = bool((arguments[2] or 0) & _WRITES)
                _judge(os.fsdecode(arguments[0]), "writes" if writes else "reads", report, own, read_too)
            elif event in _CHANGES and isinstance(arguments[0], (str, bytes, os.PathLike)):
                _judge(os.fsdecode(arguments[0]), event, report, own, read_too)
            elif event in _PROCESSES and not _is_own(event, arguments):
                report(f"{event} {arguments[:2]!r:.200}")
        finally:
            state["busy"] = False

    sys.addaudithook(look)


def _is_own(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether it is a Python that `doctor` starts, or a socket of this machine by which processes claim cores."""
    return (event == "subprocess.Popen" and arguments[0] == sys.executable) or (
        event == "socket.connect" and not isinstance(arguments[1], tuple)
    )


def _judge(text: str, what: str, report: Any, own: str, readable: tuple[str, ...]) -> None:
    path = os.path.realpath(text)
    fine = (own, "/dev/null") if what != "reads" else readable
    of_git = what == "reads" and "/.git/" in path  # the version of the code, for provenance
    if not of_git and not path.startswith(tuple(each for each in fine if each)):
        report(f"{what} {text!r:.200}")


def normal(message: str) -> str:
    """A message without details of the case, so that similar ones count together."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", message.partition("\n")[0])
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)[:160]


def environment() -> Mapping[str, str]:
    """Settings that must precede the loading of the libraries."""
    return {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
