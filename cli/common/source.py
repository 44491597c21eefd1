"""Read models, schedules and results from a path, standard input or the zoo."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.cli.common.batch_choice import (
    Shapes,
    bound,
    chosen,
    chosen_size,
    for_model,
    parse_schedules,
    schedules_inside,
)
from iosched.cli.common.options import Binding
from iosched.cli.common.output import detail, note
from iosched.cli.common.text import source_text
from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.files import MAX_PROTO_NBYTES
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.unit_graph import MOST_NBYTES, Unit, parse_units

if TYPE_CHECKING:
    from iosched.jobs.difference.bench_file import BenchFile
    from iosched.jobs.schedule_selection import SelectedSchedule
    from iosched.models.load import UnboundModel
    from iosched.models.model import Model
    from iosched.scheduler.batch_schedules import BatchSchedules
    from iosched.scheduler.document import ScheduleDocument

STDIN = "-"
ZOO = "zoo:"
_MAX_SCHEDULE_NBYTES = 256 * 2**20
_PART_NBYTES = 2**20


def read_model(
    text: str,
    binding: Binding = Binding(),  # noqa: B008 - frozen
    *,
    name: str | None = None,
    shapes: Shapes = dict,
) -> Model:
    """Load MODEL.

    Args:
        text: a path, `-`, or `zoo:NAME`.
        binding: values of its dynamic dimensions.
        name: the model's name; default: the stem of the file, or the network.
        shapes: returns the shapes of input files, which select the batch size.

    Raises:
        UsageError: nothing is piped into standard input, or the zoo has no such network.
        InvalidModelError: the file is not a model that can be run.
    """
    model = bound(read_open_model(text, name=name), binding, shapes)
    detail(f"{model.name}: {len(model.graph.operators)} operators, {len(model.proto.graph.node)} nodes")
    return model


def read_open_model(text: str, *, name: str | None = None) -> UnboundModel:
    """Load MODEL without binding its dimensions; see `read_model`."""
    from iosched.models.load import read_unbound

    source: Path | bytes
    if text == STDIN:
        source = _stdin_bytes()
    elif text.startswith(ZOO):
        from iosched.models import zoo

        network = text.removeprefix(ZOO)
        name = name or network
        source = zoo.build(network).SerializeToString()
    else:
        source = Path(text)
    return read_unbound(source, name=name)


def read_with_shapes(text: str, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Load MODEL with these input shapes, even if the file has another fixed batch size.

    Raises:
        UsageError: the model cannot have these shapes.
        InvalidModelError: the file is not a model that can be run.
    """
    try:
        return read_model(text, Binding(input_shapes=shapes))
    except UsageError:
        batch_sizes = {shape[0] for shape in shapes.values() if shape}
        if text == STDIN or len(batch_sizes) != 1:
            raise
        found = read_model(text, Binding(batch_sizes.pop()))
        if dict(found.bindings) != dict(shapes):
            raise
        return found


def read_schedules(text: str, *, model: str | None = None) -> ScheduleDocument | BatchSchedules:
    """Read the schedules in a schedule file or an optimized model.

    Args:
        text: a path, or `-`.
        model: MODEL of the same command line.

    Raises:
        UsageError: both are standard input.
        InvalidScheduleError: the file cannot be read, or has no schedule.
    """
    refuse_both_on_stdin(text, model)
    data = _first_bytes(text)
    if data.lstrip()[:1] == b"{":
        return parse_schedules(data, text)
    unbound = _model_with_schedule(data if text == STDIN else Path(text), text)
    return schedules_inside(unbound) or _schedule_of_model(unbound, text)[0]


def read_schedule_and_model(
    text: str, model: str | None, *, other: str | None = None, batch_size: int | None = None
) -> tuple[ScheduleDocument, Model | None]:
    """Read a schedule and its model: MODEL if given, else the one that carries the schedule.

    Args:
        text: a path, or `-`.
        model: MODEL for a schedule file; an optimized model needs none.
        batch_size: of the schedule, if there are several; default: the smallest.

    Raises:
        UsageError: both are standard input, or there is no schedule for that batch size.
        InvalidScheduleError: the file cannot be read, or has no schedule.
        InvalidModelError: MODEL is not a model.
    """
    refuse_both_on_stdin(text, model)
    refuse_both_on_stdin(text, other)
    return _schedule_in(_first_bytes(text), text, model, batch_size)


def read_schedule_or_result(
    text: str, batch_size: int | None = None
) -> tuple[ScheduleDocument, Model | None] | BenchFile:
    """Read a file for `diff`: a schedule with its model if it carries one, or a result of `bench`.

    Args:
        text: a path, or `-`.
        batch_size: of the schedule, if there are several; default: the smallest.

    Raises:
        UsageError: the file is an invalid result of `bench`.
        InvalidScheduleError: the file cannot be read, or is neither.
    """
    from iosched.jobs.difference.bench_file import is_bench, parse_bench

    data = _first_bytes(text)
    is_text = data.lstrip()[:1] == b"{"
    return parse_bench(data, text) if is_text and is_bench(data) else _schedule_in(data, text, None, batch_size)


def read_units(text: str | None, model: str) -> tuple[Unit, ...]:
    """Read the file of `--units`; empty without the option.

    Raises:
        UsageError: the file cannot be read or is invalid, or MODEL is standard input as well.
    """
    if text is None:
        return ()
    if text == STDIN == model:
        raise UsageError("MODEL and the units cannot both be '-': save one of them to a file")
    try:
        if text == STDIN:
            return parse_units(_stdin_bytes())
        with Path(text).open("rb") as file:
            return parse_units(file.read(MOST_NBYTES + 1))
    except OSError as error:
        raise UsageError(f"{text}: {error.strerror}: give a file of units") from None
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None


def _first_bytes(text: str) -> bytes:
    """All of standard input or of a file that starts with a brace, else the first bytes of the file."""
    return _stdin_bytes() if text == STDIN else _file_bytes(Path(text))


def _schedule_in(
    data: bytes, text: str, model: str | None, batch_size: int | None
) -> tuple[ScheduleDocument, Model | None]:
    if data.lstrip()[:1] != b"{":
        unbound = _model_with_schedule(data if text == STDIN else Path(text), text)
        return _schedule_of_model(unbound, text, batch_size)
    found = parse_schedules(data, text)
    document = chosen(found, batch_size, text)
    shapes = {} if document is found else document.inputs
    return document, None if model is None else read_model(model, Binding(input_shapes=shapes))


def refuse_both_on_stdin(schedule: str | None, model: str | None) -> None:
    """Refuse a schedule and a model that are both standard input.

    Raises:
        UsageError: both are `-`.
    """
    if schedule == STDIN == model:
        raise UsageError("MODEL and the schedule cannot both be '-': save one of them to a file")


def schedule_for(model: Model, text: str, schedule: str | None, device: str) -> SelectedSchedule | None:
    """Schedule for `model`: from the file `schedule`, else from the model, else None.

    Prints a note if it was made for another device.

    Args:
        text: MODEL on the command line.

    Raises:
        UsageError: both files are standard input.
        InvalidScheduleError: the file cannot be read, or has no schedule.
    """
    from iosched.jobs.run import CONSEQUENCE, other_device

    found = embedded_schedules(model) if schedule is None else read_schedules(schedule, model=text)
    if found is None:
        return None
    taken = for_model(found, model)
    document = taken.document
    if (other := other_device(document, device)) is not None:
        share = document.measured_share
        source = "its latencies are computed, not measured" if share is None else source_text(share, " there")
        note(f"{other}: {source if document.cost == 'analytic' else CONSEQUENCE}.")
    return taken


def remark_not_shipped(document: ScheduleDocument) -> None:
    """Print a note if 'iosched run' does not use this schedule."""
    if (text := not_shipped_text(document)) is not None:
        note(text)


def not_shipped_text(document: ScheduleDocument) -> str | None:
    """Why 'iosched run' does not use this schedule; None if it does."""
    if document.is_on_openvino and document.precision != DEFAULT_PRECISION:
        why = f"in {document.precision}, OpenVINO runs the model, and this schedule is for fp32"
        return f"'iosched run' does not use this schedule: {why}."
    if document.is_plain:
        return "'iosched run' uses plain onnxruntime, not this schedule: none was measured to be faster."
    if (library := document.library) is not None:
        return f"'iosched run' does not use this schedule where {library} is installed, because {library} ships."
    return None


def embedded_schedules(model: Model) -> ScheduleDocument | BatchSchedules | None:
    """Schedules that a model carries, or None."""
    if model.schedule_json is None:
        return None
    return parse_schedules(model.schedule_json, "the schedule inside the model")


def stem(text: str, name: str) -> str:
    """Stem of default output files, without folders even if `name` is a path."""
    if text != STDIN and not text.startswith(ZOO):
        name = Path(text).name.removesuffix(".onnx")
    name = name.removesuffix(".iosched")
    return re.sub(r"[^\w.+-]+", "_", name).lstrip(".-")[:100] or "model"


def input_file(text: str) -> Path | None:
    """The file that MODEL names; None for standard input and the zoo."""
    return None if text == STDIN or text.startswith(ZOO) else Path(text)


def _stdin_bytes() -> bytes:
    if sys.stdin.isatty():
        raise UsageError("'-' reads standard input, but that is a terminal: pipe a file in, or name it")
    parts, nbytes = [], 0
    while part := sys.stdin.buffer.read(_PART_NBYTES):
        parts.append(part)
        nbytes += len(part)
        if nbytes > MAX_PROTO_NBYTES:
            raise UsageError("standard input exceeds 2 GB, the limit of a model in one file: name a file")
    data = b"".join(parts)
    if not data:
        raise UsageError("standard input is empty: the command before the pipe wrote nothing")
    return data


def _file_bytes(path: Path) -> bytes:
    """The whole file if it starts with a brace like a schedule, else its first bytes: models are large."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            return head + file.read(_MAX_SCHEDULE_NBYTES) if head.lstrip()[:1] == b"{" else head
    except OSError as error:
        raise InvalidScheduleError(f"{path}: {error.strerror}: give a schedule file or an optimized model") from None


def _model_with_schedule(source: Path | bytes, place: str) -> UnboundModel:
    from iosched.models.load import read_unbound

    with _as_schedule_error(place):
        return read_unbound(source)


def _schedule_of_model(
    unbound: UnboundModel, place: str, batch_size: int | None = None
) -> tuple[ScheduleDocument, Model]:
    schedules = schedules_inside(unbound)
    if schedules is not None:
        size = chosen_size(schedules, batch_size, place)
        return schedules.by_size[size], unbound.bound(input_shapes=schedules.shapes_at(size))
    with _as_schedule_error(place):
        model = unbound.bound()
    found = embedded_schedules(model)
    if found is None:
        raise InvalidScheduleError(
            f"{place}: this model carries no schedule: make one with 'iosched optimize', or give the schedule file"
        )
    document = chosen(found, batch_size, place)
    if document.structure is None and document.sha256 == model.digest:
        document = replace(document, structure=model.structure)  # missing in files of older versions
    return document, model


@contextmanager
def _as_schedule_error(place: str) -> Iterator[None]:
    from iosched.models.errors import InvalidModelError

    try:
        yield
    except InvalidModelError as error:
        why = str(error).replace(f"{place} ", "it ", 1)
        raise InvalidScheduleError(f"{place}: neither a schedule nor a model with a schedule: {why}") from None
