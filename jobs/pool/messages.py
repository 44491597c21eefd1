"""Messages between the driver and a worker, as JSON that is parsed and never executed.

    Call, Known, StopAssignment                         driver to worker
    Facts                                               worker to driver, the first message
    Opened, Measured, Progress, Step, Asked             worker to driver during an assignment
    Done, Failed, Unusable                              worker to driver at the end

Measurements travel as rows of the profile database (ADR 0029). The kind of a task defines the JSON of its input and its
result (`task.py`). `call` is the number of an assignment, unique per driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from iosched.jobs.pool.codec import broken, read, written
from iosched.models import errors
from iosched.models.errors import ExecutionError, IoschedError
from iosched.models.prepared import prepare
from iosched.models.version import iosched_version
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.tables import Row, values_of
from iosched.scheduler.cost import CostQuestion
from iosched.scheduler.document_format import Digest

QUESTIONS = "questions"
"""The kind of packets, assignments that answer questions of another worker's search."""

Rows = tuple[Row, ...]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", kw_only=True):
    pass


class SentModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes a model that is sent as an ONNX file without external data.

    Attributes:
        file: SHA-256 of the file.
        sha256: `Model.digest` as read by the driver.
        structure: the digest of the structure that schedules refer to.
        batch_size: the first dimension of the inputs.
        inputs: the bound shape of each input.
    """

    file: Digest
    sha256: Digest
    structure: Digest
    name: str
    batch_size: Count
    inputs: dict[str, tuple[Count, ...]]


class Call(_Message, frozen=True, tag="call"):
    """Assigns a task to a worker.

    Attributes:
        kind: the name of the task's kind.
        work: the task's input, as JSON of that kind.
        model: the task's model.
        rows: rows of the worker's device that the worker has not seen.
        left_s: remaining seconds of the job's budget; None without a budget, or if it starts when the model is open.
        asks: whether other workers of the device may answer the questions of the search.
    """

    call: Count
    kind: str
    work: Any
    model: SentModel
    rows: Rows = ()
    left_s: float | None = None
    asks: bool = False


class Questions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of a packet: questions about a model that is opened with these settings."""

    opening: OpenSettings
    questions: tuple[CostQuestion, ...] = ()


class Known(_Message, frozen=True, tag="known"):
    """Rows that answer a round of questions. The search measures unanswered questions itself."""

    call: Count
    rows: Rows


class StopAssignment(_Message, frozen=True, tag="stop"):
    """Ends an assignment.

    Attributes:
        how: "best": return the best known result soon; "now": return no result; "pruned": stop the score command, whose
            values are worse than those of other trials.
    """

    call: Count
    how: Literal["best", "now", "pruned"]


class Facts(_Message, frozen=True, tag="facts"):
    """Describes a worker.

    Attributes:
        versions: of iosched, Python, and the libraries and drivers that affect latencies.
        device: "cpu", or the key of a GPU.
        name: the product name of the device.
        key: the device key in the profile database, for searches with default settings.
        threads: number of processor threads in use.
        yardstick: rows measured at startup; on a CPU they include the calibration kernel's row.
        disturbed_by: the interference during each attempt to measure the probe model; empty on a quiet machine.
    """

    versions: Mapping[str, str]
    device: str
    name: str
    key: str
    threads: Count
    yardstick: Rows = ()
    disturbed_by: tuple[str, ...] = ()

    @property
    def other_version(self) -> str:
        """Explains a version mismatch with the driver; empty if the versions match."""
        here, there = iosched_version(), self.versions.get("iosched", "unknown")
        return "" if there == here else f"it has iosched {there}, and this is {here}"


class Opened(_Message, frozen=True, tag="opened"):
    """The worker has opened the model of a whole job. The job's budget starts now."""

    call: Count


class Measured(_Message, frozen=True, tag="measured"):
    """Rows that the worker has just added to its database."""

    rows: Rows


class Progress(_Message, frozen=True, tag="progress"):
    """Reports the progress of an assignment; see `jobs.observer.Observer`."""

    call: Count
    done: Count
    total: Count | None
    text: str


class Step(_Message, frozen=True, tag="step"):
    """Reports a score command's value after a number of steps. The driver may answer with `StopAssignment`."""

    call: Count
    step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    value: float


class Asked(_Message, frozen=True, tag="asked"):
    """Submits a round of questions of a search, which waits for `Known`. `opening`: settings of its model, as JSON."""

    call: Count
    opening: dict[str, Any]
    questions: tuple[CostQuestion, ...]


class Done(_Message, frozen=True, tag="done"):
    """The result of an assignment, as JSON of its kind."""

    call: Count
    result: Any


class Failed(_Message, frozen=True, tag="failed"):
    """Ends an assignment with an error; `type` is the name of its class."""

    call: Count
    type: str
    text: str


class Unusable(_Message, frozen=True, tag="unusable"):
    """The worker cannot be used: its device is not attached, for example, or has stopped working."""

    reason: str


Report = Opened | Progress | Step | Asked
WorkerMessage = Facts | Measured | Report | Done | Failed | Unusable
DriverMessage = Call | Known | StopAssignment
prepare(*get_args(WorkerMessage), *get_args(DriverMessage))


class InterruptedTaskError(IoschedError):
    """A task was stopped on request and has no result."""


def encoded(message: _Message) -> bytes:
    """Encodes a message.

    Raises:
        TypeError: it contains a type that cannot be sent, such as a path.
    """
    return written(message)


def worker_message(data: bytes) -> WorkerMessage:
    """Decodes a message from a worker.

    Raises:
        ExecutionError: the message is invalid.
    """
    message: WorkerMessage = read(data, WorkerMessage)  # type: ignore[arg-type]
    if isinstance(message, Measured):
        _check_rows(message.rows)
    elif isinstance(message, Facts):
        _check_rows(message.yardstick)
    return message


def driver_message(data: bytes) -> DriverMessage:
    """Decodes a message to a worker.

    Raises:
        ExecutionError: the message is invalid.
    """
    message: DriverMessage = read(data, DriverMessage)  # type: ignore[arg-type]
    return message


def _check_rows(rows: Sequence[Row]) -> None:
    """Rejects values that SQLite cannot store, such as a time out of range."""
    try:
        for row in rows:
            values_of(row)
    except (ValueError, OverflowError) as error:
        raise broken(error) from error


_ERRORS: Mapping[str, type[IoschedError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, IoschedError)
} | {InterruptedTaskError.__name__: InterruptedTaskError}


def failed(call: int, error: BaseException) -> Failed:
    """Converts an exception to a message. A class outside `models.errors` is sent as its nearest known base class."""
    if isinstance(error, KeyboardInterrupt):
        return Failed(call=call, type=InterruptedTaskError.__name__, text="interrupted")
    kind = next((each.__name__ for each in type(error).__mro__ if _ERRORS.get(each.__name__) is each), "")
    return Failed(call=call, type=kind or type(error).__name__, text=str(error))


def raised(failure: Failed, worker: str = "a worker") -> IoschedError:
    """Restores an error from a message, with its class and text.

    An unexpected exception becomes an `ExecutionError` that names the worker.
    """
    kind = _ERRORS.get(failure.type)
    if kind is not None:
        return kind(failure.text)
    return ExecutionError(f"{worker} failed: {failure.type}: {failure.text}")
