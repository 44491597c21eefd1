"""The driver's end of a Ray cluster: starts the child process that talks to Ray, and sees when that ends."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from iosched.jobs.pool.ray import session
from iosched.jobs.pool.ray.actor import WORKER
from iosched.jobs.pool.ray.address import Cluster, LocalCluster
from iosched.jobs.pool.ray.cores import local_places
from iosched.jobs.pool.ray.setup import Setup, encoded, environment
from iosched.jobs.pool.transport import Command, Event, Reached, Unreached
from iosched.models.errors import DeviceError
from iosched.runtime.lacking import way_to_install

CHILD = "iosched.jobs.pool.ray.child"
_CLOSE_S = 6.0
_MOST_PATH = 32  # Ray has sockets below, whose paths Linux limits to 107 characters


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
        self._is_local = isinstance(cluster, LocalCluster)
        places = local_places(cluster.workers, threads) if isinstance(cluster, LocalCluster) else ()
        base = tempfile.gettempdir()
        self._folder = Path(tempfile.mkdtemp(prefix="iosched-ray-", dir=base if len(base) <= _MOST_PATH else "/tmp"))
        with (self._folder / "log").open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD],  # -P: nothing of the working folder is imported
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env=environment(cluster, self._folder),
                start_new_session=True,  # Ctrl-C is the driver's affair
            )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._is_decided = threading.Event()
        self._lost: Unreached | None = None
        self._ending = threading.Lock()
        self._has_ended = False
        self._lines.put(encoded(Setup(None if self._is_local else str(cluster), made_by, str(self._folder), places)))
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
        """Waits until the cluster is reached, three minutes at most; events stay to be received.

        Raises:
            DeviceError: there is none.
        """
        self._is_decided.wait()
        if self._lost is not None:
            raise DeviceError(self._lost.reason)

    def close(self) -> None:
        """Leaves the cluster: ends the workers, and a local cluster whole."""
        self._lines.put(None)
        until = time.monotonic() + _CLOSE_S
        self._reader.join(_CLOSE_S)  # ends when the child has
        self._end()
        for thread in (self._reader, self._writer):
            thread.join(max(0.0, until - time.monotonic()))
        shutil.rmtree(self._folder, ignore_errors=True)

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
                    self._is_decided.set()
        with suppress(ChildProcessError):  # another thread was first
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        self._end()
        self._lost = Unreached(said or self._how_it_ended(), has_ended=self._is_local and self._has_ended)
        self._events.put(self._lost)
        self._is_decided.set()
        self._lines.put(None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        """Ends what is left of the child and of what it has started.

        Only then is the child waited for: until then nobody else can have its number, which its session has too.
        """
        with self._ending, suppress(subprocess.TimeoutExpired):
            if self._child.returncode is None:
                self._has_ended = session.end(self._child.pid)
                self._child.wait(_CLOSE_S)

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
