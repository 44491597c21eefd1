"""A worker: one whole device, and the thread that does there what the driver asks for. It knows no transport.

Whoever calls it may do so from any thread. What is measured is measured by one thread, one after the other, since a
device that does two things at once measures neither; a search that waits for others' answers is no work, and other
calls are done meanwhile, in its place and on its thread.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from queue import Empty, Queue, SimpleQueue
from threading import Thread

from iosched.jobs.fleet import messages
from iosched.jobs.fleet.conversation import Conversation
from iosched.jobs.fleet.messages import Call, Done, Facts, ReturnedMessage, encoded, failed
from iosched.jobs.fleet.plain import broken, taken
from iosched.jobs.fleet.probe import probed
from iosched.jobs.fleet.station import Station
from iosched.jobs.fleet.work.kind import Order
from iosched.jobs.fleet.work.kinds import KINDS
from iosched.models.errors import DeviceLostError, ExecutionError, IoschedError


class Worker:
    """One whole device.

    Args:
        device: "cpu", or the key of a GPU that is attached ("v100").
        threads: processor threads that it may use.
        cores: the processors that it is bound to, with all that it starts; none where it is bound already, or may use
            all.
    """

    def __init__(self, device: str, threads: int, cores: Sequence[int] = ()) -> None:
        self._device, self._threads, self._cores = device, threads, tuple(cores)
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._work, name=f"worker on {device}", daemon=True).start()

    def facts(self) -> bytes:
        """What this worker is, see `messages.Facts`; measures something small, to see whether the machine is quiet.

        Raises:
            DeviceError: the device is not attached, or a library is missing.
        """
        return encoded(self._done_there(self._facts))

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: Queue[bytes]
    ) -> bytes:
        """Does what a call asks for, and returns `Done` or `Failed`.

        Args:
            message: a `messages.Call`.
            models: ONNX files by their digests, fetched when they are asked for.
            say: is called with `messages.SaidMessage`s while the work goes on.
            told: brings `messages.ToldMessage`s meanwhile.

        Raises:
            DeviceLostError: the device stopped working: this worker is of no use any more.
        """
        conversation = Conversation(say, told)
        return encoded(self._done_there(lambda: self._called(message, models, conversation)))

    def _done_there(self, do: Callable[[], messages.AnyMessage]) -> messages.AnyMessage:
        """What `do` returns when the worker's own thread has called it."""
        found: Future[messages.AnyMessage] = Future()
        self._waiting.put(lambda: _fulfil(found, do))
        return found.result()

    def _work(self) -> None:
        while True:
            self._waiting.get()()

    @cached_property
    def _station(self) -> Station:
        """The device and what is kept there; made by the worker's own thread, to which it belongs."""
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # of this thread, and of all that it starts
        return Station(self._device, self._threads, self._serve)

    def _serve(self) -> None:
        """Does one call that has come, if any."""
        try:
            waiting = self._waiting.get_nowait()
        except Empty:
            return
        waiting()

    def _called(self, message: bytes, models: Mapping[str, bytes], conversation: Conversation) -> ReturnedMessage:
        try:
            call: Call = messages.decoded(message, Call)
            kind = KINDS.get(call.kind)
            if kind is None:
                raise ExecutionError(f"this worker does no work of the kind {call.kind[:40]!r}")
            try:
                work = taken(call.work, kind.work)
            except ValueError as error:
                raise broken(error) from error
            self._station.learn(call.rows)
            with self._station.talking(conversation):
                return Done(result=kind.do(Order(work, call.model, models, self._station, conversation, call.left_s)))
        except DeviceLostError:
            raise
        except (IoschedError, KeyboardInterrupt) as error:
            return failed(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver has to hear of it
            return failed(error)

    def _facts(self) -> Facts:
        return probed(self._station, platform.python_version())


def _fulfil(found: Future[messages.AnyMessage], do: Callable[[], messages.AnyMessage]) -> None:
    try:
        found.set_result(do())
    except BaseException as error:  # noqa: BLE001 - whoever called has to hear of it
        found.set_exception(error)
