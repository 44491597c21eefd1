"""What a job asks of the fleet: one piece of work that one worker does on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iosched.jobs.fleet.budget import Budget
from iosched.jobs.fleet.messages import Progress, Rows, SentModel, Step


def ignored(message: Progress | Step) -> None:
    """Does nothing."""
    del message


@dataclass(frozen=True)
class Errand:
    """A piece of work for any worker of a device.

    Attributes:
        kind: what kind of work it is, see `work/kinds.py`.
        work: what is to be done, as plain JSON of that kind.
        model: the model that it is about.
        file: the ONNX file that `model.file` is the digest of, or its bytes.
        device: "cpu", or the key of a GPU.
        budget: of the job; the errand fails once it is exceeded.
        rows: of other devices, which a worker needs for the errands of this job; sent to each worker once.
        on_said: is called on the fleet's thread with what the worker says meanwhile; has to return soon.
    """

    kind: str
    work: Any
    model: SentModel
    file: bytes | Path
    device: str
    budget: Budget | None = None
    rows: Rows = ()
    on_said: Callable[[Progress | Step], None] = ignored
