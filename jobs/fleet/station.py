"""A worker's device, and what is kept there from call to call: the profile database, models, and one that is open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from iosched.jobs.fleet.conversation import Conversation
from iosched.jobs.fleet.messages import SentModel
from iosched.jobs.fleet.sending import unpacked
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import OpenModelHere, ProfiledDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row

_KEPT_MODELS = 2


@dataclass(frozen=True)
class _Open:
    """A model that is open, what it is open as, and what is asked about it."""

    sent: SentModel
    settings: OpenSettings
    model: OpenModelHere
    cost: MeasuredCosts


class Station:
    """What a worker has; all of it belongs to one thread.

    Args:
        device: "cpu", or the key of a GPU that is attached.
        threads: processor threads that it may use.
        serve: does one other call that has come meanwhile, if any, for a call that waits.

    Attributes:
        database: has what this worker has measured, and what it was sent.
    """

    def __init__(self, device: str, threads: int, serve: Callable[[], None]) -> None:
        self.device = device
        self.threads = threads
        self.serve = serve
        self.database = ProfileDatabase(None, on_kept=self._on_kept)
        self._models: OrderedDict[tuple[str, str], Model] = OrderedDict()
        self._open: _Open | None = None
        self._waiting: list[_Open] = []
        self._conversations: list[Conversation] = []

    @contextmanager
    def talking(self, conversation: Conversation) -> Iterator[None]:
        """A context in which what is measured is said in this conversation."""
        self._conversations.append(conversation)
        try:
            yield
        finally:
            self._conversations.pop()

    def learn(self, rows: Sequence[Row]) -> None:
        """Takes what others have measured: for the searches that wait here, where any do."""
        self._count(rows)
        self.database.merge(rows)

    def _on_kept(self, rows: Sequence[Row]) -> None:
        self._count(rows)
        if self._conversations:
            self._conversations[-1].measured(rows)

    def _count(self, rows: Sequence[Row]) -> None:
        for waiting in self._waiting:
            waiting.model.cost.measured_by_others(rows)

    def device_for(self, model: Model | None = None) -> ProfiledDevice:
        """The device.

        Raises:
            DeviceError: it is not attached, or a library is missing.
        """
        found = resolve(self.device, model)
        if found.info.cost_kind != "measured":
            raise UsageError(f"{self.device} is not attached to this worker's machine, or cannot be used there")
        return found

    def loaded(self, sent: SentModel, files: Mapping[str, bytes]) -> Model:
        """The model that was sent; the latest are kept.

        Raises:
            InvalidModelError: it is not the one that the driver has.
        """
        key = (sent.sha256, sent.name)
        if key not in self._models:
            self._models[key] = unpacked(sent, files[sent.file])
        self._models.move_to_end(key)
        while len(self._models) > _KEPT_MODELS:
            self._models.popitem(last=False)
        return self._models[key]

    def settings(self, asked: OptimizeSettings) -> OptimizeSettings:
        """The settings of a job as they are on this device.

        Raises:
            UsageError: more threads are asked for than a worker has here.
        """
        return replace(asked, device=self.device, threads=self._threads(asked.threads), profile_db=None)

    def opening(self, asked: OpenSettings) -> OpenSettings:
        """How a model is to be opened, as it is on this device.

        Raises:
            UsageError: more threads are asked for than a worker has here.
        """
        return replace(asked, threads=self._threads(asked.threads))

    def _threads(self, asked: int | None) -> int | None:
        if self.device != "cpu":
            return asked
        if asked is not None and asked > self.threads:
            raise UsageError(f"--threads {asked} is more than the {self.threads} that a worker has: leave it out")
        return asked or self.threads

    def cost(self, sent: SentModel, files: Mapping[str, bytes], settings: OpenSettings) -> MeasuredCosts:
        """Latencies of a model that is open: that of a search that waits here, or else `opened`.

        Raises:
            What `opened` raises.
        """
        waiting = (each.cost for each in self._waiting if (each.sent, each.settings) == (sent, settings))
        return next(waiting, None) or self.opened(sent, files, settings).cost

    def opened(self, sent: SentModel, files: Mapping[str, bytes], settings: OpenSettings) -> OpenModelHere:
        """The model, open on the device; it stays open until another one is.

        Raises:
            UsageError: a setting is wrong.
            InvalidModelError: it is not the one that the driver has, or onnxruntime refuses it.
            DeviceError: the device cannot place it.
        """
        if self._open is not None and (self._open.sent, self._open.settings) == (sent, settings):
            return self._open.model
        self.close_model()
        model = self.loaded(sent, files)
        found = self.device_for(model).open(model, settings, self.database).here
        assert found is not None
        self._open = _Open(sent, settings, found, found.cost)
        return found

    @contextmanager
    def waiting(
        self, sent: SentModel, settings: OpenSettings, model: OpenModelHere, cost: MeasuredCosts
    ) -> Iterator[None]:
        """A context in which the search of an open model waits, and questions about it can be asked of `cost`."""
        self._waiting.append(_Open(sent, settings, model, cost))
        try:
            yield
        finally:
            self._waiting.pop()

    def close_model(self) -> None:
        """Frees what is open for questions."""
        if self._open is not None:
            self._open.model.close()
            self._open = None
