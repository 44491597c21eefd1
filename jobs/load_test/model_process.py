"""A model in a separate process, which runs it on random inputs on request.

No tensors pass between the processes. A service that sends them is slower.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing import get_context, parent_process
from multiprocessing.managers import BaseManager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from iosched.models.errors import ExecutionError
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings


class _Session:
    """The model in the process; each calling thread of the parent has a thread here."""

    def __init__(self, path: Path, settings: ReferenceSettings) -> None:
        Thread(target=_end_with_parent, daemon=True).start()
        model = load_model(path)
        self._inputs, self._session = random_inputs(model.graph.inputs), Reference(model, settings)

    def outputs(self) -> Arrays:
        return self._session.run(self._inputs)

    def run(self) -> None:
        self._session.run(self._inputs)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Manager(BaseManager):
    session: Any


_Manager.register("session", _Session)


class ModelProcess:
    """A process that runs requests of several threads at the same time."""

    def __init__(self, model: Model, settings: ReferenceSettings) -> None:
        """Starts the process and opens the model in it.

        Raises:
            ExecutionError: the process ends instead.
        """
        # A Unix socket's path may be too long in the folder of temporary files.
        self._manager = _Manager(("127.0.0.1", 0), ctx=get_context("spawn"))
        try:
            self._manager.start()
            with TemporaryDirectory(prefix="iosched-process-") as folder:
                path = Path(folder) / "model.onnx"
                write_model(model.proto, model.weights, path)
                self._session = self._manager.session(path, settings)
                self._outputs: Arrays = self._session.outputs()
        except (EOFError, OSError) as error:
            self.close()
            raise ExecutionError(_ENDED) from error
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Arrays) -> Mapping[str, Any]:
        """Runs the model once in the process; returns the outputs that it computed first."""
        del inputs
        try:
            self._session.run()
        except (EOFError, OSError) as error:
            raise ExecutionError(_ENDED) from error
        return self._outputs

    def close(self) -> None:
        """Ends the process."""
        if hasattr(self._manager, "shutdown"):  # it has started
            self._manager.shutdown()


_ENDED = "the process of the model ended early"
