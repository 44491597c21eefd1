"""What the driver and a worker tell each other: JSON, and nothing that is executed where it is read.

    Call, Known, Stop                                   driver to worker
    Facts                                               worker to driver, the first that it says
    Opened, Measured, Progress, Step, Asked             worker to driver while it works
    Done, Failed, Unusable                              worker to driver at the end

Rows of the profile database are what measurements travel as (ADR 0029). What is to be done and what comes of it is any
JSON here: the kind of the task says what (`kind.py`). `call` counts the calls of a driver.
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
from iosched.profiler.store.tables import Row, values_of
from iosched.scheduler.document_format import Digest
from iosched.scheduler.questions import Question

Rows = tuple[Row, ...]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", kw_only=True):
    pass


class SentModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as it is sent: an ONNX file without external data, and how the driver has read it.

    Attributes:
        file: SHA-256 of the file.
        sha256: `Model.digest` of what the driver has read.
        structure: the digest of its structure, which schedules belong to.
        name: what the model is called.
        batch_size: the first dimension of its inputs.
        inputs: the bound shape of each input.
    """

    file: Digest
    sha256: Digest
    structure: Digest
    name: str
    batch_size: Count
    inputs: dict[str, tuple[Count, ...]]


class Call(_Message, frozen=True, tag="call"):
    """A task for a worker.

    Attributes:
        kind: the name of its kind.
        work: what is to be done, as JSON of that kind.
        model: what it is about.
        rows: of the worker's device, those that it has not seen.
        left_s: seconds that are left of the job's budget; None where it has none, or begins once the model is open.
        asks: whether other workers of the device can be asked the questions of a search.
    """

    call: Count
    kind: str
    work: Any
    model: SentModel
    rows: Rows = ()
    left_s: float | None = None
    asks: bool = False


class Known(_Message, frozen=True, tag="known"):
    """The rows that answer what the search of a call has asked; what they do not answer it measures itself."""

    call: Count
    rows: Rows


class Stop(_Message, frozen=True, tag="stop"):
    """A call is to end.

    Attributes:
        how: "best": soon, with the best that is known; "now": without a result; "pruned": the score command is ended,
            which is worse than others were.
    """

    call: Count
    how: Literal["best", "now", "pruned"]


class Facts(_Message, frozen=True, tag="facts"):
    """What a worker is.

    Attributes:
        versions: of iosched, of Python, and of the libraries and drivers that latencies depend on.
        device: "cpu", or the key of a GPU.
        name: the product's name of the device.
        key: the device in the profile database, as searches there use it where no settings say otherwise.
        threads: processor threads that it uses.
        cores: the numbers of the processors that it may run on.
        yardstick: the rows that were measured when it came up, of which one is the yardstick's on a CPU.
        disturbed_by: what else the machine did while it was measured, in words, each time that it was tried; empty
            where it was quiet.
    """

    versions: Mapping[str, str]
    device: str
    name: str
    key: str
    threads: Count
    cores: tuple[Count, ...] = ()
    yardstick: Rows = ()
    disturbed_by: tuple[str, ...] = ()

    @property
    def other_version(self) -> str:
        """Why this worker is not of the driver's version; empty where it is."""
        here, there = iosched_version(), self.versions.get("iosched", "unknown")
        return "" if there == here else f"it has iosched {there}, and this is {here}"


class Opened(_Message, frozen=True, tag="opened"):
    """The worker has the model of a whole job open: a budget counts from here."""

    call: Count


class Measured(_Message, frozen=True, tag="measured"):
    """Rows that the worker has just written to its database."""

    rows: Rows


class Progress(_Message, frozen=True, tag="progress"):
    """How far a call is, see `jobs.progress.Observer`."""

    call: Count
    done: Count
    total: Count | None
    text: str


class Step(_Message, frozen=True, tag="step"):
    """A score command that runs has said this value after so many steps; `Stop` follows if it is not worth going on."""

    call: Count
    step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    value: float


class Asked(_Message, frozen=True, tag="asked"):
    """The search of a call wants to know all this next, and waits until `Known` says that it is.

    Attributes:
        opening: how the model of the call is open, as JSON.
        questions: what is asked.
    """

    call: Count
    opening: dict[str, Any]
    questions: tuple[Question, ...]


class Done(_Message, frozen=True, tag="done"):
    """The result of a call, as JSON of its kind."""

    call: Count
    result: Any


class Failed(_Message, frozen=True, tag="failed"):
    """An error in place of a result; `type` is its class."""

    call: Count
    type: str
    text: str


class Unusable(_Message, frozen=True, tag="unusable"):
    """This worker is of no use, or not any more: its device is not attached, say, or has stopped working."""

    reason: str


SaidMessage = Facts | Opened | Measured | Progress | Step | Asked | Done | Failed | Unusable
ToldMessage = Call | Known | Stop
prepare(*get_args(SaidMessage), *get_args(ToldMessage))


class InterruptedTaskError(IoschedError):
    """A task was stopped without a result, since it was told to."""


def encoded(message: _Message) -> bytes:
    """The message as it is sent.

    Raises:
        TypeError: something in it does not travel, as a path.
    """
    return written(message)


def said(data: bytes) -> SaidMessage:
    """What a worker says.

    Raises:
        ExecutionError: that is not understood.
    """
    message: SaidMessage = read(data, SaidMessage)  # type: ignore[arg-type]
    if isinstance(message, Measured):
        _check_rows(message.rows)
    elif isinstance(message, Facts):
        _check_rows(message.yardstick)
    return message


def told(data: bytes) -> ToldMessage:
    """What a worker is told.

    Raises:
        ExecutionError: that is not understood.
    """
    message: ToldMessage = read(data, ToldMessage)  # type: ignore[arg-type]
    return message


def _check_rows(rows: Sequence[Row]) -> None:
    """Refuses what SQLite cannot keep, such as a time that is in no year of UTC."""
    try:
        for row in rows:
            values_of(row)
    except (ValueError, OverflowError) as error:
        raise broken(error) from error


_ERRORS: Mapping[str, type[IoschedError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, IoschedError)
} | {InterruptedTaskError.__name__: InterruptedTaskError}


def failed(call: int, error: BaseException) -> Failed:
    """An error as it is sent; of one of `IoschedError`'s that is not among `models.errors` what it derives from."""
    if isinstance(error, KeyboardInterrupt):
        return Failed(call=call, type=InterruptedTaskError.__name__, text="interrupted")
    kind = next((each.__name__ for each in type(error).__mro__ if _ERRORS.get(each.__name__) is each), "")
    return Failed(call=call, type=kind or type(error).__name__, text=str(error))


def raised(failure: Failed, worker: str = "a worker") -> IoschedError:
    """The error that was sent, to be raised here: of the same class, with the same text.

    What was not raised on purpose is an `ExecutionError` here, which says where it happened.
    """
    kind = _ERRORS.get(failure.type)
    if kind is not None:
        return kind(failure.text)
    return ExecutionError(f"{worker} failed: {failure.type}: {failure.text}")
