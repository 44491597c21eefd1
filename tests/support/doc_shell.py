"""A shell for the documentation's commands, in which `iosched` answers in a tenth of a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from doc_blocks import ROOT

from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE

# What `iosched` and `python` are in the folder of a page: they hand all that they were given to `doc_commands`.
_CLIENT = f"""#!{sys.executable} -IS
import json, os, socket, sys
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
if words[0] != "iosched":
    words = words[1:]
    if not words or not words[0].startswith(("benchmarks/", "page.py")):
        os.execv({sys.executable!r}, [{sys.executable!r}, *words])
talk = socket.socket(socket.AF_UNIX)
talk.connect(os.environ["DOC_SOCKET"])
given = dict(words=words, environment=dict(os.environ), folder=os.getcwd())
socket.send_fds(talk, [json.dumps(given).encode()], [0, 1, 2])
code = (talk.recv(1) or b"\\x46")[0]
if code and "READ_ONLY" in os.environ:
    with open(os.environ["READ_ONLY"], "a") as failed:
        failed.write(" ".join(words) + "\\n")
sys.exit(code)
"""


@dataclass(frozen=True)
class Done:
    """What a block did.

    Attributes:
        failed: the commands that could not be read, where nothing was carried out.
    """

    code: int
    out: str
    err: str
    failed: str = ""


@dataclass(frozen=True)
class Shell:
    """Runs blocks of `sh` in a folder; `tools` has the programs that stand for `iosched` and `python`."""

    tools: Path
    socket: Path

    def run(self, script: str, folder: Path) -> Done:
        """Carries out a block as bash does that stops at the first command that fails."""
        path = os.pathsep.join([str(self.tools), os.environ["PATH"]])
        return self._bash(["-e", "-o", "pipefail", "-c", script], folder, {"PATH": path})

    def read(self, script: str, folder: Path) -> Done:
        """Has `iosched` and the scripts of `benchmarks/` read their options; carries out nothing, and no other one."""
        failed = folder / "failed"
        failed.unlink(missing_ok=True)
        others = "command_not_found_handle() { :; }\n"
        done = self._bash(["-c", others + script], folder, {"PATH": str(self.tools), "READ_ONLY": str(failed)})
        return Done(done.code, done.out, done.err, failed.read_text() if failed.exists() else "")

    def _bash(self, words: list[str], folder: Path, more: dict[str, str]) -> Done:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("IOSCHED_", "RAY_", "XDG_"))},
            "HOME": str(folder / "home"),  # nobody's settings, and nobody's keys
            SHARE_VARIABLE: "1",  # other tests have the cores too, and no command is to say so
            "IOSCHED_PROFILE_DB": str(folder / "profile.sqlite"),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "DOC_SOCKET": str(self.socket),
            **more,
        }
        done = subprocess.run(
            ["/bin/bash", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """A shell whose programs lie in `folder`."""
    tools, socket = folder / "tools", folder / "socket"
    tools.mkdir()
    for name in ("iosched", "python"):
        (tools / name).write_text(_CLIENT)
        (tools / name).chmod(0o755)
    command = [sys.executable, str(ROOT / "tests" / "support" / "doc_commands.py"), str(socket)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "listening\n"
            yield Shell(tools, socket)
        finally:
            server.kill()
