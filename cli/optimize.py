"""`iosched optimize`: the main job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from iosched.cli.batch_choice import for_model
from iosched.cli.cluster import check_known, cluster_object, refuse_cluster
from iosched.cli.complete import complete_file
from iosched.cli.dry_run import print_estimate
from iosched.cli.optimize_batches import estimate_each, one_size, optimize_each, optimizing, read_dynamic
from iosched.cli.optimize_report import as_object, table_rows
from iosched.cli.optimized_files import OptimizedFiles, files_of
from iosched.cli.options import (
    AdvancedOption,
    Binding,
    Searched,
    batch_sizes_option,
    binding_options,
    budget_option,
    cluster_option,
    gathered,
    help_all_option,
    json_option,
    model_argument,
    output_option,
    planning_device_options,
    precision_option,
    pruning_options,
    refuse_pruning_beside,
    searched_options,
    strategy_option,
    verbosity_options,
)
from iosched.cli.output import INPUTS_SEED, Destination, check_destinations, emit_result, refuse_terminal
from iosched.cli.schedule_from import refuse_searching, schedule_from_option, schedules_from
from iosched.cli.source import input_file, read_model, read_units, stem
from iosched.models.errors import UsageError
from iosched.scheduler.precision import ALL_PRECISIONS
from iosched.scheduler.strategy_names import BASELINE_NAMES
from iosched.scheduler.teams import DEFAULT_OBJECTIVE, OBJECTIVES, Objective

if TYPE_CHECKING:
    from iosched.jobs.settings import OptimizeSettings
    from iosched.models.dynamic_batch import DynamicBatchModel
    from iosched.models.model import Model
    from iosched.profiler.devices.open_settings import Barriers, LayoutName
    from iosched.scheduler.pruning import Pruning
    from iosched.scheduler.strategy_names import StrategyName


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
    searched: Searched,
) -> OptimizeSettings:
    """The settings that the options ask for; raises where they contradict each other, before the model is read."""
    from iosched.jobs.settings import OptimizeSettings

    refuse_searching()
    refuse_pruning_beside(strategy)
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


@click.command(name="optimize", short_help="Find a schedule for MODEL and write the model with it.")
@model_argument
@output_option(
    "-o",
    "--output",
    metavar="OUT.onnx",
    text="Where to write the optimized model; '-' is stdout. Default: STEM.iosched.onnx in the working folder.",
)
@output_option(
    "--schedule",
    metavar="OUT.json",
    text="Where to write the schedule; '-' is stdout. Default: STEM.schedule.json in the working folder, where STEM is "
    "that of OUT.onnx if you name it; or nowhere if the model goes to stdout (it carries the schedule inside).",
)
@schedule_from_option
@planning_device_options
@binding_options
@batch_sizes_option(
    "--batch-sizes",
    text="Write one model whose batch stays dynamic, with a schedule for each of these sizes. 'run' takes the schedule "
    "for the batch size of its inputs, or for the nearest size. --input-shape then has shapes as they are at one of "
    "the sizes. One size alone means the same as --batch-size.",
)
@strategy_option(*BASELINE_NAMES)
@pruning_options
@budget_option(
    "Be done after about so many seconds, with the best schedule found by then. Comparing whole models takes a "
    "part of them. If there are too few to tell what is faster, plain onnxruntime is shipped.",
)
@click.option(
    "--units",
    cls=AdvancedOption,
    shell_complete=complete_file,
    metavar="FILE",
    help="Schedule the operators of each unit in FILE as one operator. FILE is a JSON list of lists of operators, each "
    "by its output tensor. '-' is stdin.",
)
@click.option(
    "--exhaustive",
    cls=AdvancedOption,
    is_flag=True,
    help="Measure every stage; bounds are not trusted (can take hours).",
)
@precision_option(
    "What the device computes in. On a GPU, attached or planned for: fp32, tf32 or fp16. On a CPU: fp32, or, if it has "
    "the instructions, bf16 or fp16. These run on OpenVINO and without a schedule, and the error is told.",
    ALL_PRECISIONS,
)
@click.option(
    "--barriers",
    cls=AdvancedOption,
    type=click.Choice(("auto", "stage", "none")),
    default="auto",
    show_default=True,
    help="What a stage waits for on an attached GPU. 'stage': all of the stage before. 'none': only what it reads. "
    "'auto': whichever is faster.",
)
@click.option(
    "--layout",
    cls=AdvancedOption,
    type=click.Choice(("auto", "nhwc", "nchw")),
    default="auto",
    show_default=True,
    help="How images lie on an attached GPU. 'nhwc': the channels of a pixel side by side. 'nchw': the pixels of a "
    "channel side by side. 'auto': whichever is faster for all of the model.",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=DEFAULT_OBJECTIVE,
    show_default=True,
    help="'latency': one run ends as soon as it can. 'throughput': as many images a second as can be, on all cores of "
    "a CPU. The batch, or several requests at a time, are then divided among teams of cores.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail if a plan of iosched fails or computes something else than onnxruntime. By default a stage that fails "
    "is left out, and plain onnxruntime ships instead of a whole plan that fails.",
)
@searched_options
@cluster_option(
    "Search on a device of a cluster; --device then names it. All workers of that device measure for the search."
)
@click.option(
    "--speculate",
    type=click.IntRange(min=2, max=1024),
    metavar="N",
    help="With --cluster: if a search asks for less at a time than N workers can measure, have them also measure what "
    "it may ask next. N is best the number of workers.",
)
@click.option("--dry-run", is_flag=True, help="Print how large the search is and how long it takes; measure nothing.")
@json_option
@verbosity_options
@help_all_option
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
    speculate: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find the fastest schedule for MODEL, by measurement on this device.

    Writes two files: the model as ONNX with the schedule inside, and the schedule as JSON. Any runtime loads the
    written model and computes the same outputs; 'iosched run' also runs it by its schedule.

    The schedule found ships if it is faster than plain onnxruntime beyond the noise. Otherwise plain onnxruntime ships,
    and the table says so. OpenVINO is compared too where it is installed (pip install ".[openvino]" in a clone), and
    ships if it is the fastest.

    With the name of a GPU as --device, plans for that GPU without having it. An analytic model then computes latencies,
    and everything that shows the schedule says so. In brackets stands how well a latency is known. A speed-up that the
    model cannot tell from none is called equal. Stages that were measured on such a GPU elsewhere are taken as
    measured, if 'iosched profile import' brought them here.

    The profile database keeps what is measured, so a search that was stopped goes on where it was. Ctrl-C on a terminal
    asks whether to write the best schedule found so far.

    \b
    Examples:
      iosched optimize model.onnx
      iosched optimize model.onnx --budget 60
      iosched optimize model.onnx --device v100 --batch-size 1
      iosched optimize model.onnx --batch-size 8 -o fast.onnx
      iosched optimize model.onnx --batch-sizes 1,4,16
      iosched optimize model.onnx --device v100 --cluster ray://head:10001
      iosched optimize model.onnx --device v100 --cluster auto --speculate 16
      iosched optimize model.onnx --batch-size 32 --objective throughput
      iosched optimize retrained.onnx --schedule-from model.schedule.json
      iosched zoo export squeezenet -o - | iosched optimize - -o - | iosched run - --check
    """
    inputs = [input_file(text) for text in (model, source, units) if text is not None]
    if not dry_run:  # default names are known only when the model is read
        check_destinations([output, schedule], inputs=inputs, as_json=as_json)
        refuse_terminal(output)
    if dry_run and settings.objective != DEFAULT_OBJECTIVE:
        raise UsageError("--dry-run tells of the search for the objective latency: leave --objective out")
    if speculate is not None and cluster is None:
        raise UsageError("--speculate is for the workers of a cluster: name one with --cluster")
    if dry_run:
        refuse_cluster(cluster, "--dry-run tells of a search on this machine")
    settings = replace(settings, units=read_units(units, model))
    batch_sizes = tuple(sorted(batch_sizes))
    binding, taken = one_size(binding, batch_sizes), schedules_from(source, model)

    def files_for(loaded: Model | DynamicBatchModel) -> OptimizedFiles:
        files = files_of(stem(model, loaded.name), output, schedule)
        check_destinations(files.outputs, inputs=inputs, as_json=as_json)
        return files

    if len(batch_sizes) > 1:
        dynamic = read_dynamic(model, batch_sizes, binding)
        if dry_run:
            estimate_each(dynamic, batch_sizes, settings, as_json=as_json)
            return
        files, fill = files_for(dynamic), speculate or 0
        optimize_each(dynamic, batch_sizes, settings, taken, files, cluster=cluster, fill=fill, as_json=as_json)
        return
    loaded = read_model(model, binding)
    settings = replace(settings, schedule_from=None if taken is None else for_model(taken, loaded).document)
    if dry_run:
        print_estimate(loaded, settings, as_json=as_json)
        return
    _optimize(loaded, settings, files_for(loaded), cluster, speculate or 0, as_json=as_json)


def _optimize(
    model: Model, settings: OptimizeSettings, files: OptimizedFiles, cluster: str | None, fill: int, *, as_json: bool
) -> None:
    from iosched.jobs.annotate import annotated

    result, used = optimizing(settings, cluster, fill, lambda one, view, held: one(model, settings, view, held))
    files.write(annotated(model, result.document), model.weights, result.document.to_json())
    if as_json:
        found = {"model": model.name, **files.as_object(), **as_object(result), **cluster_object(used)}
        emit_result(found, INPUTS_SEED)
    files.report([(f"{model.name} on {result.device_name}", table_rows(result))], result.notes, as_json=as_json)
