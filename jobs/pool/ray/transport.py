"""The driver's end of a Ray cluster: starts the child process that talks to Ray, and sees when that ends."""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

import msgspec

from iosched.jobs.pool.ray import session
from iosched.jobs.pool.ray.actor import WORKER
from iosched.jobs.pool.ray.address import Cluster, LocalCluster, RunningCluster
from iosched.jobs.pool.ray.cores import local_places
from iosched.jobs.pool.transport import Command, Event, Place, Reached, Unreached
from iosched.models.errors import DeviceError
from iosched.models.prepared import prepare
from iosched.runtime.lacking import way_to_install

CHILD = "iosched.jobs.pool.ray.child"
_CLOSE_S = 6.0
_MOST_PATH = 32  # Ray has sockets below, whose paths Linux limits to 107 characters
_RECONNECT_S = 30
_GRACE_S = 10  # of the child's silence; it gives the head no longer either


class Setup(msgspec.Struct, frozen=True):
    """The first line that the child process reads.

    Attributes:
        address: where to connect; None for a cluster of its own.
        made_by: what makes workers; see `WorkerActor`.
        folder: a private folder, which is removed when the cluster is left.
        places: of a cluster of its own; empty for the places that the cluster's nodes tell.
    """

    address: str | None
    made_by: str
    folder: str
    places: tuple[Place, ...] = ()


prepare(Setup, Command, Event)


def encoded(said: Setup | Command | Event) -> bytes:
    """A line of JSON, with its end."""
    return msgspec.json.encode(said) + b"\n"


class RayTransport:
    """A `Transport` over Ray. The first event is `Reached`, or `Unreached` where there is no cluster."""

    def __init__(self, cluster: Cluster, threads: int | None = None, made_by: str = WORKER) -> None:
        """Starts the child process, and waits for nothing.

        Args:
            cluster: where the workers are.
            threads: of each worker of a local cluster; None for as many as there can be.
            made_by: what makes a worker; see `WorkerActor`.

        Raises:
            UsageError: a local cluster needs more processors than there are.
            DeviceError: Ray is not installed.
        """
        if find_spec("ray") is None:
            install = way_to_install("fleet")
            raise DeviceError(f"Ray, which reaches the machines of a cluster, is not installed; {install}")
        self._setup = _setup(cluster, threads, made_by)
        self._child = _child(Path(self._setup.folder), cluster)
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._reached: Future[None] = Future()
        self._ending = threading.Lock()
        self._has_ended = False
        self._lines.put(encoded(self._setup))
        self._writer, self._reader = (threading.Thread(target=run, daemon=True) for run in (self._write, self._read))
        self._writer.start()
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child process."""
        return self._child.pid

    def send(self, command: Command) -> None:
        """Passes a command on and returns at once; does nothing after `Unreached`."""
        self._lines.put(encoded(command))

    def receive(self, timeout_s: float) -> Sequence[Event]:
        """Returns the events since the last call, in order; waits for one, at most `timeout_s`."""
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout_s))
            while True:
                found.append(self._events.get_nowait())
        return found

    def wait_until_reached(self) -> None:
        """Waits until the cluster is reached, three minutes at most; takes no event.

        Raises:
            DeviceError: it cannot be reached.
        """
        self._reached.result()

    def close(self) -> None:
        """Leaves the cluster: ends the workers, and a local cluster whole."""
        self._lines.put(None)
        self._reader.join(_CLOSE_S)  # ends when the child has
        self._end()
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
        with pipe, suppress(msgspec.DecodeError, OSError):  # half a line, of a child that was killed
            for line in pipe:
                event: Event = msgspec.json.decode(line, type=Event)
                if isinstance(event, Unreached):
                    said = event.reason
                    break
                self._events.put(event)
                if isinstance(event, Reached):
                    self._reached.set_result(None)
        with suppress(ChildProcessError):  # another thread was first
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        self._end()
        reason = said or self._how_it_ended()
        self._events.put(Unreached(reason, has_ended=self._setup.address is None and self._has_ended))
        if not self._reached.done():
            self._reached.set_exception(DeviceError(reason))
        self._lines.put(None)

    def _end(self) -> None:
        """Ends what is left of the child and of what it has started.

        Only then is the child waited for: until then nobody else can have its number, which its session has too.
        """
        with self._ending, suppress(TimeoutExpired):
            if self._child.returncode is None:
                self._has_ended = session.end(self._child.pid)
                self._child.wait(_CLOSE_S)
                shutil.rmtree(self._setup.folder, ignore_errors=True)

    def _how_it_ended(self) -> str:
        code = self._child.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the process that talks to Ray {how}"


@contextmanager
def opened(cluster: Cluster, threads: int | None = None) -> Iterator[RayTransport]:
    """A transport to a cluster that is reached, and is left at the end.

    Raises:
        UsageError: a local cluster needs more processors than there are.
        DeviceError: Ray is not installed, or there is no cluster.
    """
    transport = RayTransport(cluster, threads)
    try:
        transport.wait_until_reached()
        yield transport
    finally:
        transport.close()


def _setup(cluster: Cluster, threads: int | None, made_by: str) -> Setup:
    places = local_places(cluster.workers, threads) if isinstance(cluster, LocalCluster) else ()
    base = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="iosched-ray-", dir=base if len(base) <= _MOST_PATH else "/tmp")
    return Setup(str(cluster) if isinstance(cluster, RunningCluster) else None, made_by, folder, places)


def _child(folder: Path, cluster: Cluster) -> Popen[bytes]:
    command = [sys.executable, "-P", "-m", CHILD]  # -P: nothing of the working folder is imported
    env = environment(cluster, folder)
    with (folder / "log").open("wb") as log:  # a session of its own: Ctrl-C is the driver's affair
        return Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, cwd=folder, env=env, start_new_session=True)


def environment(cluster: Cluster, folder: Path, of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the child process, out of this one's.

    A local cluster listens on the loopback interface alone and has a token, which only the user can read; of the user's
    settings of Ray, made for other clusters, nothing holds. All that has to be so before `ray` is imported.
    """
    found = {**of, "RAY_USAGE_STATS_ENABLED": "0", **_search_path(of)}
    if isinstance(cluster, RunningCluster):
        # After so long the server of Ray Client forgets a driver that is gone, and one that it could not serve: else 30
        return {"RAY_CLIENT_RECONNECT_GRACE_PERIOD": str(_GRACE_S), **found}
    return {
        **{name: value for name, value in found.items() if not name.startswith("RAY_")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that Ray takes 127.0.0.1 for the address of this machine
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(_token(folder)),  # else Ray writes it into the home folder, for all to read
        "RAY_worker_niceness": "0",  # else 15: whatever else runs would take the processors from what is measured
        "RAY_enable_worker_prestart": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S),
    }


def _search_path(of: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH as it is understood from another working folder."""
    folders = [str(Path(folder).absolute()) for folder in of.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}


def _token(folder: Path) -> Path:
    path = folder / "token"
    path.touch(0o600, exist_ok=False)
    path.write_text(secrets.token_hex(32))
    return path
