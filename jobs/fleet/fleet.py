"""The fleet: workers on a cluster, and the thread in the driver that has them do what jobs ask for.

The driver holds all that counts: the errands, the leases and the profile database. A transport may end at any time;
another is made, and what was not answered is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import Any

from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.keeper import Keeper
from iosched.jobs.fleet.messages import InterruptedWorkError, Stop
from iosched.jobs.fleet.patience import Patience
from iosched.jobs.fleet.running import Loaded, Running
from iosched.jobs.fleet.status import FleetObserver, FleetStatus, Silence
from iosched.jobs.fleet.transport import Event, Places, Transport, TransportLost, TransportUp
from iosched.models.errors import DeviceError, IoschedError
from iosched.profiler.store.database import ProfileDatabase

_STEP_S, _ROUND_S = 0.25, 0.2
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class FleetPatience:
    """How long the fleet waits.

    Attributes:
        works: see `Patience`.
        without_s: for some worker of a device, before the errands for it fail.
        reconnect_s: before another transport is made; twice as long each time.
        retry_s: before a database that is locked is tried again, and `last_s` in all once nothing else is left to do.
    """

    works: Patience = field(default_factory=Patience)
    without_s: float = 180.0
    reconnect_s: float = 1.0
    retry_s: float = 0.5
    last_s: float = 60.0


class Fleet:
    """Workers that do errands side by side; a context manager.

    Args:
        connect: makes a transport; called again where one has ended. Raises `DeviceError` where there can be none.
        open_database: opens the profile database that all that is measured comes to; is called on a thread of its own.
        observer: is shown what happens.
        patience: how long to wait for what.
    """

    def __init__(
        self,
        connect: Callable[[], Transport],
        open_database: Callable[[], ProfileDatabase],
        observer: FleetObserver | None = None,
        patience: FleetPatience | None = None,
    ) -> None:
        self._connect, self._observer = connect, observer or Silence()
        self._patience = patience or FleetPatience()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._keeper = Keeper(open_database, self._troubled, self._patience.retry_s, self._patience.last_s)
        self._running = Running(
            self._keeper, self._post, self._observer, self._patience.works, self._patience.without_s
        )
        self._transport: Transport | None = None
        self._was_up = False
        self._connect_at_s = self._round_at_s = 0.0
        self._pause_s = self._patience.reconnect_s
        self._error: Exception | None = None
        self._was_told = ""
        self._futures: set[Future[Any]] = set()
        self._known = Flag()
        self._closing = Flag()
        self._status = FleetStatus()
        self._inbox.put(lambda: None)  # so that the first turn waits for nothing
        self._thread = Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name; waits until that is known.

        Raises:
            DeviceError: there is no cluster.
        """
        while not self._known.wait(0.2):  # in short waits, so that Ctrl-C comes through
            if not self._thread.is_alive():
                break
        if self._error is not None:
            raise self._error
        return self._running.devices

    def count(self, device: str) -> int:
        """How many workers a device of the cluster can have, whether or not they are up."""
        return self._running.count(device)

    def submit(self, errand: Errand) -> Future[Any]:
        """Has a worker do an errand; returns at once.

        Returns:
            Its result, as plain JSON, once all that was measured for it is in the database. Or an error: of the
            worker's, of the same class; `ExecutionError` where too many workers were lost with this errand;
            `DeviceLostError` where all workers of the device were lost; `DeviceError` where there never was one, or
            there is no cluster; `InterruptedWorkError` where it was told to stop.
        """
        future: Future[Any] = Future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._inbox.put(partial(self._submit, errand, future))
        if not self._thread.is_alive():
            self._end_futures(self._error or InterruptedWorkError("the fleet has ended"))
        return future

    def tell(self, future: Future[Any], stop: Stop) -> None:
        """Has an errand end in this way; one that no worker has begun ends at once, without a result."""
        self._inbox.put(partial(self._running.tell, future, stop))

    def status(self) -> FleetStatus:
        """What the fleet does now; once it is closed, what it did last."""
        return self._status

    def close(self) -> None:
        """Ends all workers; errands without an answer end as interrupted. May be called twice.

        Raises:
            IoschedError: something that was measured could not be written to the database.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._inbox.put(lambda: None)
        self._thread.join()
        try:
            self._keeper.close()
        finally:
            self._end_futures(InterruptedWorkError("interrupted"))

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._take_turn()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer has to hear of it
            self._fail(error)
        finally:
            self._status = self._running.status()
            if self._transport is not None:
                self._transport.close()
            self._running.close()

    def _take_turn(self) -> None:
        """Does what has come, or waits a moment for something; then gives out work."""
        try:
            do = self._inbox.get(timeout=_STEP_S)
            while True:
                do()
                do = self._inbox.get_nowait()
        except Empty:
            pass
        now_s = time.monotonic()
        if self._transport is None and self._error is None and now_s >= self._connect_at_s:
            self._reach(now_s)
        if now_s >= self._round_at_s:
            self._round_at_s = now_s + _ROUND_S
            self._running.look_round(now_s)
            self._show()
        self._running.step(now_s)

    def _show(self) -> None:
        if (status := self._running.status()) != self._status:
            self._status = status
            self._observer.status(status)

    def _submit(self, errand: Errand, future: Future[Any]) -> None:
        if self._error is None:
            self._running.submit(errand, future)
            self._round_at_s = 0.0
        else:
            self._end_futures(self._error)

    def _post(self, loaded: Loaded) -> None:
        self._inbox.put(lambda: self._running.handle(loaded, time.monotonic()))

    def _reach(self, now_s: float) -> None:
        """Makes a transport, and a thread that listens to it."""
        self._connect_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        try:
            transport = self._connect()
        except IoschedError as error:
            if self._was_up:
                self._observer.note(f"the cluster is not reached: {error}")
            else:
                self._fail(error)
            return
        self._transport = transport
        self._running.connected(transport.send)
        Thread(target=self._listen, args=(transport,), name="fleet's ear", daemon=True).start()

    def _listen(self, transport: Transport) -> None:
        while not self._closing.is_set():
            for event in transport.receive(_STEP_S):
                self._inbox.put(partial(self._take, transport, event))
                if isinstance(event, TransportLost):
                    return

    def _take(self, transport: Transport, event: Event) -> None:
        now_s = time.monotonic()
        if isinstance(event, TransportUp):
            self._was_up, self._pause_s = True, self._patience.reconnect_s
        elif isinstance(event, TransportLost):
            self._lose(transport, event.reason, now_s)
        else:
            self._running.handle(event, now_s)
            if isinstance(event, Places):
                self._round_at_s = 0.0
                self._known.set()

    def _lose(self, transport: Transport, reason: str, now_s: float) -> None:
        self._transport = None
        self._running.disconnected(now_s)
        transport.close()
        if self._was_up:
            self._connect_at_s = now_s + self._pause_s
            self._observer.note(f"the cluster is not reached any more ({reason}); trying again")
        else:
            self._fail(DeviceError(reason))

    def _fail(self, error: Exception) -> None:
        """Nothing can be done any more."""
        self._error = error
        self._end_futures(error)
        self._known.set()

    def _end_futures(self, error: Exception) -> None:
        for future in list(self._futures):
            with suppress(InvalidStateError):
                future.set_exception(error)

    def _troubled(self, error: Exception, is_tried_again: bool) -> None:
        """Something is in the way of the database; on its thread."""
        self._inbox.put(partial(self._hear_trouble, error, is_tried_again))

    def _hear_trouble(self, error: Exception, is_tried_again: bool) -> None:
        if not is_tried_again:
            self._fail(error)
        elif self._was_told != str(error):
            self._was_told = str(error)
            self._observer.note(f"{str(error).splitlines()[0]} Nothing is lost: it is tried again.")
