"""`iosched optimize`: find a schedule and write the model with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from iosched.cli.cluster_display import check_known, cluster_object, refuse_cluster
from iosched.cli.common.batch_choice import for_model
from iosched.cli.common.complete import complete_file
from iosched.cli.common.optimized_files import OptimizedFiles, files_of
from iosched.cli.common.options import (
    Binding,
    SearchOptions,
    any_device_options,
    batch_sizes_option,
    binding_options,
    budget_option,
    cluster_option,
    flags_given,
    gathered,
    json_option,
    model_argument,
    output_option,
    precision_option,
    pruning_options,
    refuse_pruning_with,
    searched_options,
    strategy_option,
    verbosity_options,
)
from iosched.cli.common.output import INPUTS_SEED, Destination, check_destinations, emit_result, refuse_terminal
from iosched.cli.common.source import input_file, read_model, read_schedules, read_units, stem
from iosched.cli.help import Command
from iosched.cli.optimize_batches import estimate_each, one_size, optimize_each, optimizing, read_dynamic
from iosched.cli.optimize_report import as_object, fp16_notes, print_estimate, table_rows
from iosched.models.errors import UsageError
from iosched.scheduler.precision import ALL_PRECISIONS
from iosched.scheduler.strategies import BASELINE_NAMES, LANES
from iosched.scheduler.teams import DEFAULT_OBJECTIVE, OBJECTIVES, Objective

if TYPE_CHECKING:
    from iosched.jobs.settings import OptimizeSettings
    from iosched.models.dynamic_batch import DynamicBatchModel
    from iosched.models.model import Model
    from iosched.profiler.devices.open_settings import Barriers, LayoutName
    from iosched.scheduler.pruning import Pruning
    from iosched.scheduler.strategies import StrategyName


_SEARCHING = ("strategy", "r", "s", "no_pruning", "exhaustive", "no_search", "gap", "units", "dry_run")
"""Parameters that control the search."""


def _settings(
    device: str,
    strategy: StrategyName,
    pruning: Pruning,
    budget: float | None,
    exhaustive: bool,
    precision: str,
    barriers: Barriers,
    layout: LayoutName,
    objective: Objective,
    strict: bool,
    no_search: bool,
    searched: SearchOptions,
) -> OptimizeSettings:
    from iosched.jobs.settings import OptimizeSettings

    if click.get_current_context().params["source"] is not None and (options := flags_given(*_SEARCHING)):
        raise UsageError(f"--schedule-from searches nothing: leave out {' and '.join(options)}")
    if no_search and (options := flags_given("strategy", "exhaustive")):
        raise UsageError(f"--no-search contradicts {options[0]}: leave one out")
    strategy = LANES if no_search else strategy
    refuse_pruning_with(strategy)
    check_known(device)
    return OptimizeSettings(
        device=device,
        strategy=strategy,
        r=pruning.r,
        s=pruning.s,
        budget_s=budget,
        precision=precision,
        exhaustive=exhaustive,
        barriers=barriers,
        layout=layout,
        objective=objective,
        strict=strict,
        **searched,
    )


@click.command(
    name="optimize",
    cls=Command,
    short_help="Find the fastest schedule for MODEL and write the model with it.",
    basic="output schedule schedule-from device batch-size batch-sizes input-shape strategy r s no-pruning "
    "budget units objective strict gap profile-db cluster dry-run json",
)
@model_argument
@output_option(
    "-o",
    "--output",
    metavar="OUT.onnx",
    text="Optimized model to write; '-' is stdout. Default: STEM.iosched.onnx.",
)
@output_option(
    "--schedule",
    metavar="OUT.json",
    text="Schedule to write; '-' is stdout. Default: STEM.schedule.json.\n\nSTEM is that of OUT.onnx if you name it. A "
    "model on stdout carries the schedule, and no file is written.",
)
@click.option(
    "--schedule-from",
    "source",
    shell_complete=complete_file,
    metavar="F",
    help="Use the schedule in F; search nothing.\n\nF is a schedule file or an optimized model with the same "
    "structure, such as the model before retraining. '-' is stdin.",
)
@any_device_options
@binding_options
@batch_sizes_option(
    "--batch-sizes",
    text="One model with a schedule for each batch size.\n\nIts batch stays dynamic. 'run' takes the schedule for the "
    "batch size of its inputs, or for the nearest size. --input-shape gives shapes at one of the sizes. A single size "
    "is the same as --batch-size.",
)
@strategy_option(*BASELINE_NAMES)
@click.option(
    "--no-search",
    is_flag=True,
    help="Compare schedules that need no search; the same as --strategy lanes.",
)
@pruning_options
@budget_option(
    "End after about SECONDS with the best schedule so far.\n\nThis includes the comparison of whole models. If the "
    "time does not suffice for a decision, plain onnxruntime ships.",
)
@click.option(
    "--units",
    shell_complete=complete_file,
    metavar="FILE",
    help="Operators to schedule as one.\n\nFILE is a JSON list of lists of operators, each named by its output "
    "tensor; '-' is stdin.",
)
@click.option(
    "--exhaustive",
    is_flag=True,
    help="Measure every stage, without bounds (can take hours).",
)
@precision_option(
    "Number format of the computation.\n\nGPUs: fp32, tf32 or fp16. CPUs: fp32, and bf16 or fp16 where the processor "
    "has the instructions; these run on OpenVINO without a schedule, and the error is reported.",
    ALL_PRECISIONS,
)
@click.option(
    "--barriers",
    type=click.Choice(("auto", "stage", "none")),
    default="auto",
    show_default=True,
    help="What a stage waits for on an attached GPU: the previous 'stage' or only its own inputs ('none'). 'auto' "
    "takes the faster.",
)
@click.option(
    "--layout",
    type=click.Choice(("auto", "nhwc", "nchw")),
    default="auto",
    show_default=True,
    help="Memory layout of images on an attached GPU. 'auto' takes the faster for the whole model.",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=DEFAULT_OBJECTIVE,
    show_default=True,
    metavar="GOAL",
    help="'latency' of a run, or 'throughput'.\n\n'throughput' divides the batch or requests among teams of cores; a "
    "GPU runs several requests.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail if a plan fails or its outputs differ from onnxruntime's.\n\nBy default a failing stage is left out, "
    "and plain onnxruntime ships in place of a failing plan.",
)
@searched_options
@cluster_option("Search on a device of a Ray cluster.")
@click.option("--dry-run", is_flag=True, help="Print the size and the expected time of the search only.")
@json_option
@verbosity_options
@gathered("settings", _settings)
def command(
    model: str,
    output: Destination | None,
    schedule: Destination | None,
    source: str | None,
    binding: Binding,
    batch_sizes: tuple[int, ...],
    settings: OptimizeSettings,
    units: str | None,
    cluster: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find the fastest schedule for MODEL by measurement, and write the model with it.

    Two files are written: an ONNX model with the schedule inside, and the schedule as JSON. Any runtime loads the model
    and computes the same outputs; 'iosched run' executes it by its schedule.

    The schedule ships if it is faster than plain onnxruntime beyond the noise. Otherwise plain onnxruntime ships, and
    the table reports it. OpenVINO is a candidate where it is installed (pip install ".[openvino]" in a clone).

    If --device names a GPU that is not attached, an analytic model computes the latencies, and the schedule is marked
    as analytic. The uncertainty of each latency is in brackets. A speedup within the uncertainty is reported as equal.
    Stage measurements from such a GPU are used once 'iosched profile import' has added them.

    The profile database keeps all measurements, so an interrupted search resumes. Ctrl-C on a terminal asks whether to
    write the best schedule so far. With --cluster, --device names a device of the cluster, and all workers with that
    device measure.

    \b
    Examples:
      iosched optimize model.onnx --budget 60
      iosched optimize model.onnx --device v100 --batch-size 8 -o fast.onnx
      iosched optimize model.onnx --batch-sizes 1,4,16
      iosched optimize model.onnx --batch-size 32 --objective throughput
      iosched optimize retrained.onnx --schedule-from model.schedule.json
      iosched zoo export squeezenet -o - | iosched optimize - -o - | iosched run - --check
    """
    inputs = [input_file(text) for text in (model, source, units) if text is not None]
    if not dry_run:  # default names depend on the model
        check_destinations([output, schedule], inputs=inputs, as_json=as_json)
        refuse_terminal(output)
    if dry_run and settings.objective != DEFAULT_OBJECTIVE:
        raise UsageError("--dry-run estimates a search for latency: leave --objective out")
    if dry_run:
        refuse_cluster(cluster, "--dry-run estimates a search on this machine")
    settings = replace(settings, units=read_units(units, model))
    batch_sizes = tuple(sorted(batch_sizes))
    binding = one_size(binding, batch_sizes)
    taken = None if source is None else read_schedules(source, model=model)

    def files_for(loaded: Model | DynamicBatchModel) -> OptimizedFiles:
        files = files_of(stem(model, loaded.name), output, schedule)
        check_destinations(files.outputs, inputs=inputs, as_json=as_json)
        return files

    if len(batch_sizes) > 1:
        dynamic = read_dynamic(model, batch_sizes, binding)
        if dry_run:
            estimate_each(dynamic, batch_sizes, settings, as_json=as_json)
            return
        files = files_for(dynamic)
        optimize_each(dynamic, batch_sizes, settings, taken, files, cluster=cluster, as_json=as_json)
        return
    loaded = read_model(model, binding)
    settings = replace(settings, schedule_from=None if taken is None else for_model(taken, loaded).document)
    if dry_run:
        print_estimate(loaded, settings, as_json=as_json)
        return
    _optimize(loaded, settings, files_for(loaded), cluster, as_json=as_json)


def _optimize(
    model: Model, settings: OptimizeSettings, files: OptimizedFiles, cluster: str | None, *, as_json: bool
) -> None:
    from iosched.jobs.annotate import annotated

    result, used = optimizing(settings, cluster, lambda one, view, held: one(model, settings, view, held))
    files.write(annotated(model, result.document), model.weights, result.document.to_json())
    if as_json:
        found = {"model": model.name, **files.as_object(), **as_object(result), **cluster_object(used)}
        emit_result(found, INPUTS_SEED)
    notes = (*result.notes, *fp16_notes(result))
    files.report([(f"{model.name} on {result.device_name}", table_rows(result))], notes, as_json=as_json)
