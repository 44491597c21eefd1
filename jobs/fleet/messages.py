"""What the driver and a worker tell each other about one call: JSON, and nothing that is executed where it is read.

    Call            driver to worker: rows that the worker has not seen, and the work
    Opened, Measured, Progress, Step, Asked     worker to driver while it works
    Known, Stop     driver to worker meanwhile
    Done, Failed    worker to driver at the end
    Facts           worker to driver when it comes up

Rows of the profile database are what measurements travel as (ADR 0029). What the work is and what comes of it is told
by its kind (`work/kinds.py`); here it is any JSON. Every message has the version of this file, and one of another
version is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from iosched.jobs.fleet.plain import broken, read, written
from iosched.models import errors
from iosched.models.errors import ExecutionError, IoschedError
from iosched.models.prepared import prepare
from iosched.models.version import iosched_version
from iosched.profiler.store.tables import Row, values_of
from iosched.scheduler.document_format import Digest
from iosched.scheduler.questions import Question

VERSION = 1

Rows = tuple[Row, ...]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", kw_only=True):
    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)] = VERSION


class SentModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as it is sent: an ONNX file without external data, and how the driver has read it.

    Attributes:
        file: SHA-256 of the file, by which transports name it.
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
    """Work for a worker.

    Attributes:
        kind: what kind of work it is; `work/kinds.py` has them all.
        work: what is to be done, as JSON of that kind.
        model: what it is about.
        rows: of the worker's device, those that it has not seen.
        left_s: seconds that are left of the job's budget; None where it has none, or begins once the model is open.
    """

    kind: str
    work: Any
    model: SentModel
    rows: Rows = ()
    left_s: float | None = None


class Opened(_Message, frozen=True, tag="opened"):
    """The worker has the model of a whole job open: a budget counts from here."""


class Measured(_Message, frozen=True, tag="measured"):
    """Rows that the worker has just written to its database."""

    rows: Rows


class Progress(_Message, frozen=True, tag="progress"):
    """How far the work is, see `jobs.progress.Observer`."""

    done: Count
    total: Count | None
    text: str


class Step(_Message, frozen=True, tag="step"):
    """A score command that runs has said this value after so many steps; `Stop` follows if it is not worth going on."""

    step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    value: float


class Asked(_Message, frozen=True, tag="asked"):
    """A search wants to know all this next, and waits until `Known` says that it is.

    Attributes:
        number: counts the rounds of a call from 0.
        work: an object, work of the kind "questions" about the model of the call, as JSON, without questions.
        questions: what is asked.
    """

    number: Count
    work: dict[str, Any]
    questions: tuple[Question, ...]


class Guessed(_Message, frozen=True, tag="guessed"):
    """What a search may ask in a later round: for workers that have nothing else, until round `number` is answered."""

    number: Count
    question: Question


class Known(_Message, frozen=True, tag="known"):
    """The rows that answer round `number`; what they do not answer is for the worker itself to measure."""

    number: Count
    rows: Rows


class Stop(_Message, frozen=True, tag="stop"):
    """The user has interrupted.

    Attributes:
        how: "best": end soon, with the best that is known; "now": end without a result; "pruned": end the score
            command, which is worse than others were.
    """

    how: Literal["best", "now", "pruned"]


class Done(_Message, frozen=True, tag="done"):
    """The result, as JSON of the work's kind."""

    result: Any


class Failed(_Message, frozen=True, tag="failed"):
    """An error in place of a result; `type` is its class."""

    type: str
    text: str


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
    def iosched(self) -> str:
        """The version of iosched there."""
        return self.versions.get("iosched", "unknown")


SaidMessage = Opened | Measured | Progress | Step | Asked | Guessed
ToldMessage = Known | Stop
ReturnedMessage = Done | Failed
AnyMessage = Call | SaidMessage | ToldMessage | ReturnedMessage | Facts
prepare(*get_args(AnyMessage))


class InterruptedWorkError(IoschedError):
    """Work was stopped without a result, since it was told to."""


def encoded(message: _Message) -> bytes:
    """The message as it is sent.

    Raises:
        TypeError: something in it does not travel, as a path.
    """
    return written(message)


def packet(asked: Asked, questions: Sequence[Question]) -> Any:
    """Work of the kind "questions" that asks some of those that a search asks for."""
    return {**asked.work, "questions": msgspec.to_builtins(tuple(questions))}


def said(data: bytes) -> SaidMessage:
    """What a worker says while it works; see `decoded`."""
    message: SaidMessage = decoded(data, SaidMessage)
    return message


def told(data: bytes) -> ToldMessage:
    """What a worker is told while it works; see `decoded`."""
    message: ToldMessage = decoded(data, ToldMessage)
    return message


def returned(data: bytes) -> ReturnedMessage:
    """What a worker says at the end; see `decoded`."""
    message: ReturnedMessage = decoded(data, ReturnedMessage)
    return message


def decoded(data: bytes, kind: Any) -> Any:
    """A message of this kind: one of the classes above, or a union of some.

    Raises:
        ExecutionError: it is none, or of another version; says which.
    """
    head = read(data, _Head)
    if head.version != VERSION:
        raise ExecutionError(
            f"a message of version {head.version}, and this iosched ({iosched_version()}) reads {VERSION}: "
            "install the same iosched on all machines"
        )
    message = read(data, kind)
    try:
        for row in getattr(message, "rows", ()):
            values_of(row)  # refuses what SQLite cannot keep, such as a time that is in no year of UTC
    except (ValueError, OverflowError) as error:
        raise broken(error) from error
    return message


class _Head(msgspec.Struct):
    version: int


_ERRORS: Mapping[str, type[IoschedError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, IoschedError)
} | {InterruptedWorkError.__name__: InterruptedWorkError}


def failed(error: BaseException) -> Failed:
    """An error as it is sent; of one of `IoschedError`'s that is not among `models.errors` what it derives from."""
    if isinstance(error, KeyboardInterrupt):
        return Failed(type=InterruptedWorkError.__name__, text="interrupted")
    kind = next((each.__name__ for each in type(error).__mro__ if _ERRORS.get(each.__name__) is each), "")
    return Failed(type=kind or type(error).__name__, text=str(error))


def raised(failure: Failed, worker: str = "a worker") -> IoschedError:
    """The error that was sent, to be raised here: of the same class, with the same text.

    What was not raised on purpose is an `ExecutionError` here, which says where it happened.
    """
    kind = _ERRORS.get(failure.type)
    if kind is not None:
        return kind(failure.text)
    return ExecutionError(f"{worker} failed: {failure.type}: {failure.text}")
