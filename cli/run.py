"""`iosched run`: run a model by its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings

import click

from iosched.cli.common.complete import complete_file
from iosched.cli.common.json_objects import CHECK, json_object
from iosched.cli.common.options import (
    INPUT_FILE,
    Binding,
    binding_options,
    device_options,
    each,
    json_option,
    model_argument,
    output_option,
    parse_input_file,
    verbosity_options,
)
from iosched.cli.common.output import (
    INPUTS_SEED,
    Destination,
    check_destinations,
    emit_result,
    note,
    refuse_terminal,
    write_and_note,
)
from iosched.cli.common.source import input_file, read_model, read_with_shapes, schedule_for
from iosched.cli.common.tables import print_pairs
from iosched.cli.common.text import latency_text, shape_text
from iosched.cli.help import Command
from iosched.models.errors import ExecutionError, MismatchError, OtherDeviceWarning, UsageError

if TYPE_CHECKING:
    import numpy as np

    from iosched.jobs.run import RunResult, RunTrace
    from iosched.jobs.schedule_selection import SelectedSchedule
    from iosched.models.model import Model
    from iosched.runtime.compare import Check
    from iosched.scheduler.document import ScheduleDocument


@click.command(
    name="run",
    cls=Command,
    short_help="Run MODEL by its schedule; check and time it.",
    basic="schedule input output repeat check against trace device json",
)
@model_argument
@click.option(
    "--schedule",
    shell_complete=complete_file,
    metavar="F",
    help="Schedule file; '-' is stdin. Default: the schedule inside MODEL.\n\nWithout a schedule, plain onnxruntime "
    "runs the model; a GPU runs one operator after another.",
)
@click.option(
    "--input",
    "input_files",
    metavar=INPUT_FILE,
    multiple=True,
    callback=each(parse_input_file),
    help="Input NAME from a .npy file. Repeat for several.\n\nOther inputs get seeded random values.",
)
@output_option("--output", metavar="F.npz", text="Write all outputs to a .npz file; '-' is stdout.")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Time N runs, after one untimed run.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare the outputs with onnxruntime's; exit 4 if they differ.\n\nThe first operator that differs is named. "
    "A file that plain onnxruntime runs has nothing to compare.",
)
@click.option(
    "--check-schedule",
    is_flag=True,
    help="Run by the schedule in the file and compare like --check, even if a library was shipped.",
)
@click.option(
    "--against",
    metavar="[NAME=]ORIGINAL.onnx",
    multiple=True,
    help="Compare with onnxruntime on this model instead.\n\nNAME selects a model in a file of 'batch'; repeat for "
    "several.",
)
@output_option(
    "--trace",
    metavar="F.json",
    text="Write a trace of measured and predicted task times.\n\nOpen it in ui.perfetto.dev or chrome://tracing. The "
    "run is on a CPU and by the schedule, even if a library was shipped. '-' is stdout.",
)
@click.option(
    "--strict-plan", is_flag=True, help="Fail if MODEL has no plan file that fits, instead of preparing it again."
)
@device_options
@binding_options
@json_option
@verbosity_options
def command(
    model: str,
    schedule: str | None,
    input_files: tuple[tuple[str, Path], ...],
    output: Destination | None,
    repeat: int,
    check: bool,
    check_schedule: bool,
    against: tuple[str, ...],
    trace: Destination | None,
    strict_plan: bool,
    device: str,
    threads: int | None,
    binding: Binding,
    as_json: bool,
) -> None:
    """Run MODEL by its schedule, on inputs from files or seeded random inputs.

    MODEL may also be a folder of 'iosched export'. An exported model runs by its plan file.

    \b
    Examples:
      iosched run squeezenet.iosched.onnx --check
      iosched run model.onnx --schedule model.schedule.json --input x=x.npy --output y.npz
      iosched run super.onnx --against a=a.onnx --against b=b.onnx
      iosched run model.iosched.onnx --repeat 50 --trace run.json
    """
    from iosched.jobs.loading.plan import opened_plan, path_in
    from iosched.jobs.run import run

    model = str(path_in(model))
    inputs = [input_file(model), *(path for _, path in input_files)]
    check_destinations([output, trace], inputs=inputs, as_json=as_json)
    refuse_terminal(output)
    if model == "-" and any(text.rpartition("=")[2] == "-" for text in against):
        raise UsageError("MODEL and --against cannot both be '-': save one of them to a file")
    loaded = read_model(model, binding, shapes=lambda: _shapes(input_files))
    taken = _taken(loaded, model, schedule, device)
    document = None if taken is None else taken.document
    scheduled_by = "--trace" if trace is not None else "--check-schedule" if check_schedule else None
    if scheduled_by is not None and document is None:
        raise UsageError(f"{scheduled_by} needs a schedule, but there is none: make one with 'iosched optimize'")
    arrays = _inputs(loaded, input_files)
    members = _originals(loaded, against)
    uses_plan = schedule is None and trace is None and not check_schedule and document is not None
    plan = opened_plan(model, device=device, threads=threads, strict=strict_plan) if uses_plan or strict_plan else None
    reference = _reference(loaded, against) if (check or check_schedule or against) and not members else None
    with _explaining_random_strings(loaded, input_files), catch_warnings(action="ignore", category=OtherDeviceWarning):
        found = run(
            loaded,
            document,
            arrays,
            repeats=repeat,
            reference=reference,
            members=members,
            device=device,
            threads=threads,
            by_schedule=check_schedule,
            trace=trace is not None,
            plan=plan,
            tell=note,
        )
    for line in found.notes:
        note(line)
    if scheduled_by is not None and document is not None:
        _remark_not_as_shipped(document, scheduled_by)
    if trace is not None and found.trace is not None:
        write_and_note(trace, _trace_text(loaded, found, found.trace).encode())
    _emit(found, taken, output, as_json, is_stdout_taken=trace is not None and trace.path is None)
    if found.check is not None and not found.check.passed:
        from iosched.jobs.bisect_mismatch import mismatch_text

        raise MismatchError(mismatch_text(found.check.reasons, found.first_difference))


def _taken(model: Model, text: str, schedule: str | None, device: str) -> SelectedSchedule | None:
    from iosched.profiler.devices.resolve import unscheduled_text

    taken = schedule_for(model, text, schedule, device)
    if taken is None:
        how = unscheduled_text(device)
        note(f"{model.name} has no schedule: running it {how}. Make one with 'iosched optimize'.")
    return taken


def _shapes(files: tuple[tuple[str, Path], ...]) -> dict[str, tuple[int, ...]]:
    from iosched.cli.run_arrays import array_shape

    return {name: array_shape(path) for name, path in files}


def _inputs(model: Model, files: tuple[tuple[str, Path], ...]) -> dict[str, np.ndarray]:
    from iosched.cli.run_arrays import read_inputs
    from iosched.runtime.inputs import random_inputs

    specs = model.graph.inputs
    arrays = read_inputs(files, specs)
    missing = [spec for spec in specs if spec.name not in arrays]
    if missing:
        note(f"Using seeded random values for {', '.join(spec.name for spec in missing)}.")
    return {**random_inputs(missing), **arrays}


@contextmanager
def _explaining_random_strings(model: Model, files: tuple[tuple[str, Path], ...]) -> Iterator[None]:
    """Add to a failure which inputs were random strings: many models accept only known ones."""
    try:
        yield
    except ExecutionError as error:
        given = {name for name, _ in files}
        drawn = [spec.name for spec in model.graph.inputs if spec.dtype == "string" and spec.name not in given]
        if not drawn:
            raise
        way = " ".join(f"--input {name}=FILE.npy" for name in drawn)
        raise ExecutionError(f"{error}\nThe model may not accept random strings: give real ones with {way}.") from error


def _reference(model: Model, against: tuple[str, ...]) -> Model:
    if len(against) > 1:
        raise UsageError("--against is given twice, but MODEL is not a file of 'batch': give it once")
    return read_with_shapes(against[0], model.bindings) if against else model


def _originals(model: Model, against: tuple[str, ...]) -> dict[str, Model]:
    """Original models by their names in a file of several; empty for other files.

    Raises:
        UsageError: the file has no model of that name.
    """
    from iosched.models.composition.members import members_of

    members = {member.name: member for member in members_of(model.proto)}
    if not members or not any("=" in text for text in against):
        return {}
    found: dict[str, Model] = {}
    for text in against:
        name, _, source = text.partition("=")
        if name not in members:
            raise UsageError(f"--against {text}: there is no model {name!r} in the file; it has {', '.join(members)}")
        shapes = {
            own: model.bindings[called] for own, called in members[name].inputs.items() if called in model.bindings
        }
        found[name] = read_with_shapes(source, shapes)
    return found


def _remark_not_as_shipped(document: ScheduleDocument, option: str) -> None:
    if not document.is_shipped:
        note(f"Run by its schedule. Without {option}, {document.library} runs it, because that is what ships.")


def _trace_text(model: Model, found: RunResult, trace: RunTrace) -> str:
    from iosched.cli.pictures.theme import styles_of
    from iosched.cli.pictures.trace import draw_trace, predicted_facts

    document, runs = trace.document, trace.runs
    facts = {
        "model": model.name,
        "measured": f"{found.description}: start and end of each kernel call, on its lane; gaps between calls are "
        "waiting and hand-off",
        "run": f"{runs.number + 1} of {len(runs.times_us)}, the median by latency: {runs.latency_us:.3f} us",
        **predicted_facts(document),
    }
    return draw_trace(document.schedule, facts=facts, styles=styles_of(model.graph), runs=runs)


def _emit(
    found: RunResult,
    taken: SelectedSchedule | None,
    output: Destination | None,
    as_json: bool,
    *,
    is_stdout_taken: bool,
) -> None:
    if output is not None:
        from iosched.cli.run_arrays import npz

        write_and_note(output, npz(found.outputs))
    if as_json:
        emit_result(as_object(found, taken), INPUTS_SEED)
    elif output is None and not is_stdout_taken:
        _print(found)
    elif found.check is not None and found.check.passed:
        note(_check_text(found.check))


def as_object(found: RunResult, taken: SelectedSchedule | None) -> dict[str, object]:
    """JSON object of `run --json`."""
    check = found.check and json_object(found.check, CHECK, first_difference=found.first_difference)
    return {
        "latency_us": json_object(found.timing, "median=median_us p10=p10_us p90=p90_us min=min_us samples=samples_us"),
        "check": check,
        "outputs": {name: _shape(value) for name, value in found.outputs.items()},
        "schedule": taken and json_object(taken, "batch_size exact=is_exact shipped=document.shipped"),
    }


def _shape(value: object) -> list[int] | None:
    shape = getattr(value, "shape", None)
    return None if shape is None else list(shape)


def _print(found: RunResult) -> None:
    timing, runs = found.timing, len(found.timing.samples_us)
    spread = (
        f" (median of {runs}; p10 to p90: {latency_text(timing.p10_us)} to {latency_text(timing.p90_us)})"
        if runs > 1
        else ""
    )
    rows = [("latency", f"{latency_text(timing.median_us)}{spread}")]
    for name, value in found.outputs.items():
        shape = _shape(value)
        text = type(value).__name__ if shape is None else f"{value.dtype} {shape_text(shape)}"
        rows.append((f"output {name}", text))
    if found.check is not None:
        rows.append(("check", _check_text(found.check)))
    print_pairs(found.description, rows, to_stderr=False)


def _check_text(check: Check) -> str:
    verdict = "passed" if check.passed else "FAILED"
    return f"{verdict}: largest difference from onnxruntime {check.max_abs:.3g}, {check.max_rel:.3g} relative"
