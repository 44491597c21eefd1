"""The model of a result of `optimize`, to run and to write."""

from __future__ import annotations

from threading import Lock

from iosched.jobs.annotate import annotated
from iosched.jobs.loaded import LoadedModel
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.models.source import StrPath
from iosched.scheduler.document import ScheduleDocument


class OptimizedModel:
    """A model that is made ready to run when it is first asked for. Several threads may ask."""

    def __init__(self, model: Model, threads: int | None) -> None:
        """Keeps the model, and how many CPU cores it was optimized for."""
        self._model, self._threads = model, threads
        self._lock = Lock()
        self._loaded: LoadedModel | None = None

    def loaded(self, document: ScheduleDocument) -> LoadedModel:
        """The model ready to run by this schedule; the same one until it is closed.

        Raises:
            DeviceError: the device is not attached any more, or onnxruntime is not installed.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = LoadedModel(self._model, document, threads=self._threads)
            return self._loaded

    def save(self, document: ScheduleDocument, path: StrPath) -> None:
        """Writes the model with this schedule inside; the file is there whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        write_model(annotated(self._model, document), self._model.weights, path)

    def close(self) -> None:
        """Frees what was made ready. May be called again."""
        with self._lock:
            if self._loaded is not None:
                self._loaded.close()
                self._loaded = None
