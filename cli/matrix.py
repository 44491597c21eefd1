"""`iosched matrix`: schedule a model for several devices and batch sizes, and compute every schedule on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from iosched.cli.cluster_display import ClusterUse, cluster_object, with_pool
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import (
    Binding,
    SearchOptions,
    batch_sizes_option,
    cluster_option,
    devices_option,
    gathered,
    input_shape_option,
    json_option,
    model_argument,
    output_option,
    precision_option,
    pruning_options,
    refuse_pruning_with,
    searched_options,
    strategy_option,
    threads_option,
    verbosity_options,
)
from iosched.cli.common.output import INPUTS_SEED, Destination, check_destinations, emit_result, note, say, write
from iosched.cli.common.progress import progress_bar
from iosched.cli.common.source import input_file, read_model
from iosched.cli.common.tables import print_items
from iosched.cli.common.text import (
    ENDS,
    EQUAL,
    RATIO,
    equal_text,
    latency_ends_text,
    latency_text,
    percent_more,
    share_text,
)
from iosched.cli.help import Command
from iosched.cli.pictures.charts import draw_heat_map
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.matrix import MatrixResult, MatrixSettings, MatrixTarget
    from iosched.models.model import Model
    from iosched.scheduler.precision import PrecisionName
    from iosched.scheduler.pruning import Pruning
    from iosched.scheduler.strategies import SearchStrategy


_TARGET = "device name batch_size cost optimal proven taken_from sequential_us speedup"
_OBJECT = """
model cost launch precision strategy pruning targets latency_us measured_share slowdown notes
intervals.level=level intervals.latency_us=ends intervals.slowdown=ratios
"""
_COMPUTED = "computed by the analytic model for one CUDA graph"
_COST_TEXT = {
    "analytic": f"{_COMPUTED}, not measured",
    "measured": "measured",
    "mixed": f"on GPUs {_COMPUTED}, not measured; on the CPU measured",
}


def _settings(
    devices: tuple[str, ...],
    precision: PrecisionName,
    strategy: SearchStrategy,
    pruning: Pruning,
    searched: SearchOptions,
) -> MatrixSettings:
    from iosched.jobs.matrix import MatrixSettings

    if not devices:
        raise UsageError("--device names no device: give names of GPUs, or cpu")
    refuse_pruning_with(strategy)
    return MatrixSettings(
        devices,
        precision,
        strategy=strategy,
        r=pruning.r,
        s=pruning.s,
        **searched,
    )


@click.command(
    name="matrix",
    cls=Command,
    short_help="Schedule MODEL for several devices and batch sizes, and compare.",
    basic="device batch-sizes cluster json",
)
@model_argument
@devices_option(
    default=None,
    text="Devices to schedule for: 'cpu' and names of GPUs. Repeat, or separate by commas.",
)
@batch_sizes_option("--batch-sizes", "--batch-size", text="Batch sizes to schedule for. Default: the model's own.")
@input_shape_option
@precision_option("Number format of the computation on GPUs.")
@strategy_option()
@pruning_options
@threads_option
@searched_options
@cluster_option("Measure on devices of a Ray cluster.")
@output_option("--plot", metavar="F.svg", text="Write the table as an SVG heat map; '-' is stdout.")
@json_option
@verbosity_options
@gathered("settings", _settings)
def command(
    model: str,
    settings: MatrixSettings,
    batch_sizes: tuple[int, ...],
    input_shapes: dict[str, tuple[int, ...]],
    cluster: str | None,
    plot: Destination | None,
    as_json: bool,
) -> None:
    """Schedule MODEL for each device and batch size, and compute every schedule's latency on all of them.

    A row is the target that a schedule runs on, a column the target that it was optimized for. The diagonal, marked *,
    is the latency of a target's own schedule. Other latencies are followed by the difference to it; = marks a
    difference within the uncertainty of the model.

    'cpu' and attached GPUs are measured; other GPUs are simulated by the analytic model. Stage measurements from such a
    GPU are used once 'iosched profile import' has added them. With --cluster, --device names devices of the cluster,
    and its workers compute cells in parallel.

    \b
    Examples:
      iosched matrix zoo:inception_v3 --device v100,k80
      iosched matrix zoo:inception_v3 --device v100 --batch-sizes 1,32,128
      iosched matrix zoo:inception_v3 --device v100,cpu --cluster auto
    """
    check_destinations([plot], inputs=[input_file(model)], as_json=as_json)
    first = read_model(model, Binding(batch_sizes[0] if batch_sizes else None, input_shapes))
    result, used = _matrix(first, batch_sizes, input_shapes, settings, cluster)
    if as_json:
        emit_result(as_object(first.name, result, settings) | cluster_object(used), INPUTS_SEED)
    elif plot is None or plot.path is not None:
        _print(first.name, result, settings)
    _remark(result)
    if plot is not None:
        title, how = _title(first.name, result), _cost_text(result)
        drawn = draw_heat_map(title, how, labels(result), result.latency_us, _slowdown(result), result.is_equal)
        write(plot, drawn.encode())


def _batches(
    first: Model, batch_sizes: tuple[int, ...], shapes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[int, Model]]:
    """The model bound to each batch size, read when it is needed."""
    from iosched.models.export import source_of
    from iosched.models.load import load_model

    yield batch_sizes[0] if batch_sizes else first.batch_size, first
    for batch_size in batch_sizes[1:]:
        loaded = load_model(source_of(first), name=first.name, batch_size=batch_size, input_shapes=shapes or None)
        yield batch_size, loaded


def _matrix(
    first: Model,
    batch_sizes: tuple[int, ...],
    shapes: dict[str, tuple[int, ...]],
    settings: MatrixSettings,
    cluster: str | None,
) -> tuple[MatrixResult, ClusterUse | None]:
    from iosched.jobs.matrix import matrix
    from iosched.profiler.devices.resolve import is_measured_on_cpu, remarks

    batches = _batches(first, batch_sizes, shapes)
    if cluster is not None:
        return with_pool(
            *(cluster, settings.profile_db, settings.threads),
            lambda pool, view: matrix(batches, settings, view, pool),
        )
    for line in (line for device in settings.devices for line in remarks(device)):
        note(line)
    on_cpu = any(map(is_measured_on_cpu, settings.devices))
    if len(batch_sizes) > 1 and on_cpu:
        note("cpu is measured at each batch size. This takes minutes, and longer for large batches.")
    with progress_bar() as observer:
        return matrix(batches, settings, observer), None


def labels(result: MatrixResult) -> list[str]:
    """Short names of targets: device, batch size or both, whichever differ."""
    one_device = len({target.device for target in result.targets}) == 1
    one_batch = len({target.batch_size for target in result.targets}) == 1
    if one_batch:
        return [target.device for target in result.targets]
    return [
        f"batch {target.batch_size}" if one_device else f"{target.device} x{target.batch_size}"
        for target in result.targets
    ]


def as_object(model: str, result: MatrixResult, settings: MatrixSettings) -> dict[str, object]:
    """JSON object of `matrix --json`."""
    targets = [
        json_object(target, _TARGET, speedup=target.speedup and json_object(target.speedup, RATIO))
        for target in result.targets
    ]
    more = {"model": model, "launch": None if result.cost == "measured" else settings.launch, "targets": targets}
    return json_object(
        result,
        _OBJECT,
        **more,
        **json_object(settings, "precision strategy pruning"),
        slowdown=_slowdown(result),
        notes=_notes(result),
        ends=[[each and json_object(each.latency_us, ENDS) for each in row] for row in result.intervals],
        ratios=[[each and json_object(each.slowdown, RATIO) for each in row] for row in result.intervals],
    )


def _slowdown(result: MatrixResult) -> list[list[float | None]]:
    places = range(len(result.targets))
    return [[result.slowdown(executed, optimized) for optimized in places] for executed in places]


def _title(model: str, result: MatrixResult) -> str:
    devices = dict.fromkeys(target.name for target in result.targets)
    sizes = {target.batch_size for target in result.targets}
    where = ", ".join(devices) if len(devices) == 1 else f"{len(devices)} devices"
    batch = f", batch {sizes.pop()}" if len(sizes) == 1 else ""
    return f"{model} on {where}{batch}"


def _cost_text(result: MatrixResult) -> str:
    if not any(_has_measured(result)):
        return f"latency, {_COST_TEXT[result.cost]}"
    cpu = "; on the CPU measured" if result.cost == "mixed" else ""
    return f"latency, on GPUs {_COMPUTED}, except stages measured on another machine{cpu}"


def _has_measured(result: MatrixResult) -> list[bool]:
    """Whether each target has stages measured on another machine."""
    return [any(row) for row in result.measured_share]


def _notes(result: MatrixResult) -> list[str]:
    """Sources of measured stages, once for all targets with the same one."""
    said: dict[str, list[str]] = {}
    for name, target in zip(labels(result), result.targets, strict=True):
        for sentence in target.notes:
            said.setdefault(sentence, []).append(name)
    return [f"{', '.join(names)}: {sentence}" for sentence, names in said.items()]


def _print(model: str, result: MatrixResult, settings: MatrixSettings) -> None:
    names = labels(result)
    columns: list[tuple[str, Callable[[int], str]]] = [
        ("executed on", names.__getitem__),
        *((f"for {name}", partial(_cell, result, optimized=number)) for number, name in enumerate(names)),
        ("sequential", lambda executed: _sequential(result.targets[executed])),
    ]
    if any(map(any, result.intervals)):
        columns.append((f"* interval ({result.level:.0%})", partial(_within, result)))
    if any(_has_measured(result)):
        columns.append(("* measured", partial(_share, result)))
    print_items(range(len(names)), columns, title=f"{_title(model, result)}: {_cost_text(result)}")
    if any(cell(executed).endswith(EQUAL) for executed in range(len(names)) for _, cell in columns):
        say(equal_text("the row's own schedule (*)"))


def _share(result: MatrixResult, executed: int) -> str:
    """Share of a target's own latency that was measured."""
    if result.targets[executed].cost == "measured":
        return "all"
    share = result.measured_share[executed][executed]
    return "nothing" if share is None else share_text(share)


def _cell(result: MatrixResult, executed: int, optimized: int) -> str:
    text = latency_text(result.latency_us[executed][optimized])
    slowdown = result.slowdown(executed, optimized)
    if executed == optimized:
        return f"{text} *"
    mark = f" {EQUAL}" if result.is_equal(executed, optimized) else ""
    return text if slowdown is None else f"{text} {percent_more(slowdown)}{mark}"


def _sequential(target: MatrixTarget) -> str:
    mark = f" {EQUAL}" if target.speedup is not None and target.speedup.is_equal else ""
    return f"{latency_text(target.sequential_us)}{mark}"


def _within(result: MatrixResult, executed: int) -> str:
    known = result.intervals[executed][executed]
    return "" if known is None else latency_ends_text(known.latency_us)


def _remark(result: MatrixResult) -> None:
    from iosched.scheduler.proof import proof_text

    for line in _notes(result):
        note(line)
    names = labels(result)
    for name, target in zip(names, result.targets, strict=True):
        if target.taken_from is not None:
            note(
                f"The search for {name} ended unproven; the schedule for {names[target.taken_from]} is faster"
                " there and is used for both."
            )
        elif not target.optimal:
            note(f"The schedule for {name} is the best found, {proof_text(target.proven)}.")
