"""The driver's end of a Ray cluster: starts the supervised child that calls Ray, and detects its end."""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen

import msgspec

from iosched.jobs.pool.ray.actor import WORKER
from iosched.jobs.pool.ray.address import Cluster, LocalCluster, RunningCluster
from iosched.jobs.pool.ray.places import local_places
from iosched.jobs.pool.transport import Command, Event, Place, Unreached
from iosched.models.errors import DeviceError
from iosched.models.prepared import prepare
from iosched.runtime.missing_dependencies import way_to_install

SUPERVISED = "iosched.jobs.pool.ray.supervised"
_CLOSE_S = 6.0
_MOST_PATH = 32  # Ray's socket paths below it may have 107 characters
_RECONNECT_S = 30
_GRACE_S = 10  # as long as the child waits for a silent head


class Setup(msgspec.Struct, frozen=True):
    """The first line that the child process reads.

    Attributes:
        address: of a running cluster; None to start a local one.
        made_by: the constructor of workers; see `WorkerActor`.
        places: of a local cluster; empty to use the places of the cluster's nodes.
    """

    address: str | None
    made_by: str
    places: tuple[Place, ...] = ()


prepare(Setup, Command, Event)


def encoded(said: Setup | Command | Event) -> bytes:
    """Encodes a line of JSON, with the line ending."""
    return msgspec.json.encode(said) + b"\n"


class RayTransport:
    """A `Transport` over Ray. The first event is `Places`, or `Unreached` if the connection fails."""

    def __init__(self, cluster: Cluster, threads: int | None = None, made_by: str = WORKER) -> None:
        """Starts the child process and returns at once.

        Args:
            threads: threads per worker of a local cluster; None for as many as possible.
            made_by: the constructor of workers; see `WorkerActor`.

        Raises:
            UsageError: a local cluster needs more processors than there are.
            DeviceError: Ray is not installed.
        """
        if find_spec("ray") is None:
            install = way_to_install("fleet")
            raise DeviceError(f"clusters need Ray, which is not installed; {install}")
        if isinstance(cluster, LocalCluster):
            self._setup = Setup(None, made_by, local_places(cluster.workers, threads))
        else:
            self._setup = Setup(str(cluster), made_by)
        base = tempfile.gettempdir()
        self._folder = Path(tempfile.mkdtemp(prefix="iosched-ray-", dir=base if len(base) <= _MOST_PATH else "/tmp"))
        self._child = _child(self._folder, cluster)
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lines.put(encoded(self._setup))
        self._writer, self._reader = (threading.Thread(target=run, daemon=True) for run in (self._write, self._read))
        self._writer.start()
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process ID of the supervisor, which leads the session of the child and its descendants."""
        return self._child.pid

    def send(self, command: Command) -> None:
        """Sends a command and returns at once; does nothing after `Unreached`."""
        self._lines.put(encoded(command))

    def receive(self, timeout_s: float) -> Sequence[Event]:
        """Returns the events since the last call, in order; waits up to `timeout_s` for one."""
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout_s))
            while True:
                found.append(self._events.get_nowait())
        return found

    def close(self) -> None:
        """Stops the workers, and a local cluster as a whole."""
        self._lines.put(None)
        self._reader.join(_CLOSE_S)  # the reader ends with the child
        self._child.terminate()
        self._reader.join(_CLOSE_S)
        self._writer.join(_CLOSE_S)

    def _write(self) -> None:
        pipe = self._child.stdin
        assert pipe is not None
        with suppress(OSError), pipe:
            while (line := self._lines.get()) is not None:
                pipe.write(line)
                pipe.flush()

    def _read(self) -> None:
        pipe = self._child.stdout
        assert pipe is not None
        said = None
        with pipe, suppress(msgspec.DecodeError, OSError):  # half a line from a killed child
            for line in pipe:
                event: Event = msgspec.json.decode(line, type=Event)
                if isinstance(event, Unreached):
                    said = event.reason
                    break
                self._events.put(event)
        self._child.terminate()
        code = self._child.wait()
        if code < 0:  # the supervisor was killed, and the child with it
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            shutil.rmtree(self._folder, ignore_errors=True)
        is_local = self._setup.address is None
        self._events.put(Unreached(said or _reason(code), has_ended=is_local and code >= 0))
        self._lines.put(None)


def _reason(code: int) -> str:
    """Explains an exit code of the supervisor, which passes on a signal that killed the child as a shell does."""
    number = -code if code < 0 else code - 128
    how = f"was killed by signal {number}" if number > 0 else f"ended with code {code}"
    return f"the process that talks to Ray {how}"


def _child(folder: Path, cluster: Cluster) -> Popen[bytes]:
    # -P: do not import from the working folder
    command = [sys.executable, "-P", "-m", SUPERVISED, str(os.getpid()), str(folder)]
    env = environment(cluster, folder)
    with (folder / "log").open("wb") as log:  # own session: only the driver handles Ctrl-C
        return Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, cwd=folder, env=env, start_new_session=True)


def environment(cluster: Cluster, folder: Path, of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment of the child process.

    A local cluster listens on the loopback interface only and has a token that only the user can read. It ignores the
    user's Ray settings, which are for other clusters. The variables must be set before `ray` is imported.
    """
    found = {**of, "RAY_USAGE_STATS_ENABLED": "0", **_search_path(of)}
    if isinstance(cluster, RunningCluster):
        # How long the Ray Client server keeps a lost driver, or one that it could not serve; 30 s by default
        return {"RAY_CLIENT_RECONNECT_GRACE_PERIOD": str(_GRACE_S), **found}
    return {
        **{name: value for name, value in found.items() if not name.startswith("RAY_")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray use 127.0.0.1 as the address of this machine
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(_token(folder)),  # by default Ray writes a world-readable file in the home folder
        "RAY_worker_niceness": "0",  # 15 by default, which would let other processes disturb measurements
        "RAY_enable_worker_prestart": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S),
    }


def _search_path(of: Mapping[str, str]) -> dict[str, str]:
    """Returns PYTHONPATH with absolute folders, since the child has another working folder."""
    folders = [str(Path(folder).absolute()) for folder in of.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}


def _token(folder: Path) -> Path:
    path = folder / "token"
    path.touch(0o600, exist_ok=False)
    path.write_text(secrets.token_hex(32))
    return path
