"""A script that imitates Python on macOS or Windows: it removes what they do not have, then runs iosched.

    python other_system.py SYSTEM MODEL

SYSTEM is a value of `platform.system`, "Darwin" or "Windows". Writes, as JSON, the modules of iosched that cannot be
imported, and the exit codes and output of commands on MODEL. Modules of the standard library and of packages that use
other means on these systems are imported before anything is removed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import json
import os
import pkgutil
import platform
import signal
import socket
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from types import ModuleType

_LOADED_BEFORE = (
    *("asyncio", "concurrent.futures", "ctypes.util", "multiprocessing", "sqlite3", "subprocess", "webbrowser"),
    *("click.shell_completion", "click.testing", "msgspec", "numpy.random", "onnx", "onnxruntime", "optuna"),
    *("platformdirs", "rich.console", "rich.live", "rich.progress", "rich.table"),
)
_ON_LINUX_ONLY = ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "eventfd", "posix_fadvise")
_ON_UNIX = (
    *("getuid", "geteuid", "getgid", "fork", "killpg", "setsid", "getpgid", "setpgid", "getloadavg", "uname"),
    *("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "nice", "mkfifo", "waitid", "sysconf"),
    *("register_at_fork", "chown", "fchmod"),
)
_UNIX_SIGNALS = ("SIGHUP", "SIGALRM", "SIGUSR1", "SIGCHLD", "SIGQUIT", "alarm", "setitimer", "pthread_sigmask")
_UNIX_MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog")
_NEEDING_MORE = (
    "iosched.jobs.pool.ray.actor",
    "iosched.jobs.pool.ray.child",
    "iosched.profiler.baselines.torch_runs",
)
"""Modules that need Ray or PyTorch."""


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in _UNIX_MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def imitate(system: str) -> None:
    for name in _LOADED_BEFORE:
        importlib.import_module(name)
    sysconfig.get_config_vars()
    _remove(os, _ON_LINUX_ONLY)
    _remove(signal, ("pidfd_send_signal",))
    if system == "Windows":
        _remove(os, _ON_UNIX)
        os.supports_dir_fd.clear()
        _remove(signal, _UNIX_SIGNALS)
        _remove(socket, ("AF_UNIX",))
        for name in _UNIX_MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, _Missing())
    sys.platform = {"Darwin": "darwin", "Windows": "win32"}[system]
    platform.system = lambda: system


def _remove(module: ModuleType, names: Sequence[str]) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def broken_modules() -> Iterator[str]:
    import iosched

    for found in pkgutil.walk_packages(iosched.__path__, "iosched."):
        if found.name in _NEEDING_MORE or found.name.rpartition(".")[2] in ("__main__", "_executor"):
            continue
        try:
            importlib.import_module(found.name)
        except (ImportError, AttributeError, OSError) as error:
            yield f"{found.name}: {error!r}"


def called(*words: str) -> tuple[int, str, str]:
    from click.testing import CliRunner

    from iosched.cli.main import cli

    result = CliRunner().invoke(cli, words, prog_name="iosched")
    return result.exit_code, result.stdout, result.stderr


def main() -> None:
    system, model = sys.argv[1:]
    imitate(system)
    planned = ("optimize", model, "--device", "v100", "-o", "planned.onnx", "--schedule", "planned.json")
    commands = (
        *(("--help",), ("--version",), ("zoo", "list"), ("devices",), ("doctor",), ("inspect", model), planned),
        *(("show", "planned.onnx"), ("explain", "planned.onnx", "y"), ("diff", "planned.json", "planned.json")),
        *(("rank", model, "--device", "v100,t4"), ("profile", "stats")),
        *(("optimize", model), ("run", model), ("bench", model)),
        ("explore", model, "--space", "builtin:mnasnet", "--objective", "latency:v100,flops", "--trials", "1"),
    )
    found = {"broken": list(broken_modules()), "calls": [(words, *called(*words)) for words in commands]}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
