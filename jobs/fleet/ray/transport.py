"""The driver's end of a Ray cluster: starts the child process that talks to Ray, and sees when that ends."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from iosched.jobs.fleet.ray import session
from iosched.jobs.fleet.ray.actor import WORKER
from iosched.jobs.fleet.ray.address import Cluster, LocalCluster
from iosched.jobs.fleet.ray.cores import local_places
from iosched.jobs.fleet.ray.setup import Setup, command, environment
from iosched.jobs.fleet.ray.wire import encoded, event_in
from iosched.jobs.fleet.transport import Command, Event, TransportLost, TransportUp
from iosched.models.errors import DeviceError
from iosched.runtime.lacking import way_to_install

_CLOSE_S = 6.0
_MOST_PATH = 32  # Ray has sockets below, whose paths Linux limits to 107 characters


class RayTransport:
    """A `Transport` over Ray. The first event is `TransportUp`, or `TransportLost` where there is no cluster."""

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
        check_ray()
        places = local_places(cluster.workers, threads) if isinstance(cluster, LocalCluster) else ()
        self._folder = _private_folder()
        with (self._folder / "log").open("wb") as log:
            self._child = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env=environment(cluster, self._folder),
                start_new_session=True,  # Ctrl-C is the driver's affair
            )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._reached = threading.Event()
        self._lost: str | None = None
        self._ending = threading.Lock()
        address = None if isinstance(cluster, LocalCluster) else str(cluster)
        self._lines.put(encoded(Setup(address, made_by, str(self._folder), places)))
        self._writer, self._reader = (threading.Thread(target=run, daemon=True) for run in (self._write, self._read))
        self._writer.start()
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child process."""
        return self._child.pid

    def send(self, command: Command) -> None:
        """Passes a command on and returns at once; where the child has ended, `TransportLost` has been told."""
        self._lines.put(encoded(command))

    def receive(self, timeout_s: float) -> Sequence[Event]:
        """What happened since the last call, in order; waits until something did, at most so long."""
        try:
            found = [self._events.get(timeout=timeout_s)]
        except queue.Empty:
            return ()
        with suppress(queue.Empty):
            while True:
                found.append(self._events.get_nowait())
        return found

    def wait_until_up(self) -> None:
        """Waits until the cluster is reached, three minutes at most; events stay to be received.

        Raises:
            DeviceError: there is none; the transport is closed.
        """
        self._reached.wait()
        if self._lost is not None:
            self.close()
            raise DeviceError(self._lost)

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
        with pipe, suppress(msgspec.DecodeError, OSError):  # half a line, of a child that was killed
            for line in pipe:
                self._take(event_in(line))
        with suppress(ChildProcessError):  # another thread was first
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        self._end()
        code = self._child.returncode
        if self._lost is None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self._take(TransportLost(f"the process that talks to Ray {how}"))
        self._lines.put(None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        """Ends what is left of the child and of what it has started.

        Only then is the child waited for: until then nobody else can have its number, which its session has too.
        """
        with self._ending, suppress(subprocess.TimeoutExpired):
            if self._child.returncode is None:
                session.end(self._child.pid)
                self._child.wait(_CLOSE_S)

    def _take(self, event: Event) -> None:
        if self._lost is not None:
            return
        if isinstance(event, TransportLost):
            self._lost = event.reason
        self._events.put(event)
        if isinstance(event, TransportUp | TransportLost):
            self._reached.set()


@contextmanager
def opened(cluster: Cluster, threads: int | None = None) -> Iterator[RayTransport]:
    """A transport to a cluster that is reached, and is left at the end.

    Raises:
        UsageError: a local cluster needs more processors than there are.
        DeviceError: Ray is not installed, or there is no cluster.
    """
    transport = RayTransport(cluster, threads)
    try:
        transport.wait_until_up()
        yield transport
    finally:
        transport.close()


def check_ray() -> None:
    """Accepts that Ray is installed.

    Raises:
        DeviceError: it is not.
    """
    if find_spec("ray") is None:
        raise DeviceError(f"Ray, which reaches the machines of a cluster, is not installed; {way_to_install('fleet')}")


def _private_folder() -> Path:
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="iosched-ray-", dir=base if len(base) <= _MOST_PATH else "/tmp"))
