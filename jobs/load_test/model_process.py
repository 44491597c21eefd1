"""A model in a process of its own, which runs it on random inputs when it is asked to.

All requests are equal: only a line crosses the processes for each, and an answer is that of the request that has waited
longest. A service that sends tensors is slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from iosched.models.errors import ExecutionError, IoschedError
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings

_READY, _DONE = "ready", "done"
_MODEL, _OUTPUTS = "model.onnx", "outputs.npz"


class ModelProcess:
    """A process that runs up to `callers` requests at the same time."""

    def __init__(self, model: Model, settings: ReferenceSettings, callers: int = 1) -> None:
        """Starts the process and opens the model in it.

        Raises:
            ExecutionError: the process ends instead.
        """
        self._asking, self._hearing = Lock(), Lock()
        with TemporaryDirectory(prefix="iosched-process-") as folder:
            write_model(model.proto, model.weights, Path(folder) / _MODEL)
            # -P: do not import from the working folder
            words = (folder, msgspec.json.encode(asdict(settings)).decode(), str(callers))
            command = [sys.executable, "-P", "-m", __name__, *words]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            try:
                self._hear(_READY)
                with np.load(Path(folder) / _OUTPUTS) as arrays:
                    self._outputs = dict(zip(model.graph.outputs, arrays.values(), strict=True))
            except BaseException:
                self.close()
                raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def run(self, inputs: Arrays) -> Mapping[str, Any]:
        """Runs the model once in the process; returns the outputs that it computed first."""
        del inputs
        assert self._process.stdin is not None
        with self._asking, suppress(BrokenPipeError):  # then it says nothing
            print(file=self._process.stdin, flush=True)
        with self._hearing:
            self._hear(_DONE)
        return self._outputs

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _hear(self, expected: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != expected:
            raise ExecutionError("the process of the model ended early")


def serve(folder: Path, settings: ReferenceSettings, callers: int) -> None:
    """Runs the model of the folder for each line of stdin."""
    model = load_model(folder / _MODEL)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model, settings) as session, ThreadPoolExecutor(callers) as pool:
        outputs = session.run(inputs)
        np.savez(folder / _OUTPUTS, *(outputs[name] for name in model.graph.outputs))
        _say(_READY)
        for _ in sys.stdin:
            pool.submit(_answer, session, inputs)


def _answer(session: Reference, inputs: Arrays) -> None:
    try:
        session.run(inputs)
    except IoschedError:
        os._exit(1)
    _say(_DONE)


def _say(word: str) -> None:
    os.write(sys.stdout.fileno(), f"{word}\n".encode())  # at once, whichever thread it is


if __name__ == "__main__":
    serve(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ReferenceSettings), int(sys.argv[3]))
