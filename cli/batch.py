"""`iosched batch`: combine several models in one file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.batch_policy import batch_policy
from iosched.cli.common.complete import complete_model
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.named_models import files_of, parse_named, read_models
from iosched.cli.common.optimized_files import SCHEDULE_SUFFIX, OptimizedFiles, print_lines, schedule_of, wrote
from iosched.cli.common.options import (
    Binding,
    SearchOptions,
    any_device_options,
    binding_options,
    budget_option,
    flags_given,
    gathered,
    json_option,
    output_option,
    precision_option,
    searched_options,
    verbosity_options,
)
from iosched.cli.common.output import (
    INPUTS_SEED,
    Destination,
    check_destinations,
    emit_json,
    emit_result,
    note,
    note_before,
    notes_after,
    quiet,
    refuse_terminal,
)
from iosched.cli.common.progress import AskOnce, progress_bar
from iosched.cli.common.quantities import ByName, by_name, parse_duration, parse_rate
from iosched.cli.common.source import input_file, read_schedule_and_model, read_with_shapes
from iosched.cli.common.tables import print_items, print_pairs
from iosched.cli.common.text import COMPARED, count_text, latency_text
from iosched.cli.help import Command
from iosched.models.errors import UsageError
from iosched.scheduler.batching.policy_names import POLICY_NAMES

if TYPE_CHECKING:
    from iosched.jobs.batch import BatchResult, ClusterResult
    from iosched.jobs.batching.batch_comparison import MemberResult
    from iosched.jobs.batching.model_clusters import BatchSettings, ClusterEstimate
    from iosched.jobs.row import Row
    from iosched.models.model import Model
    from iosched.scheduler.batching.policy_names import PolicyName

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_DEFAULT = Path("batch.iosched.onnx")

_DEVICE = "device.kind=device_kind device.name=device_name cost"
_MEMORY = "memory_nbytes.alone=memory.alone_nbytes memory_nbytes.together=memory.together_nbytes"
_OBJECT = f"outputs models {_DEVICE} clusters batched shared rows shipped {_MEMORY} left_out notes seconds"
_CLUSTER = (
    f"models output schedule batched shared rows shipped reason ratio {_MEMORY} estimated_nbytes plan_nbytes notes"
)
_ROW = "name latency_us per_second low=low_us high=high_us after_rest_us=rested_us how"
_ESTIMATED = f"models=names operators alike shared {_MEMORY}"
_MODEL_COLUMNS: list[tuple[str, Callable[[MemberResult], str]]] = [
    ("model", lambda member: member.name),
    ("nodes", lambda member: f"{member.n_nodes:,}"),
    ("alone, with its own schedule", lambda member: latency_text(member.latency_us, unknown="")),
]
_ESTIMATE_COLUMNS: list[tuple[str, Callable[[ClusterEstimate], str]]] = [
    ("models", lambda each: ", ".join(each.names)),
    ("operators", lambda each: f"{each.operators:,}"),
    ("equal at most", lambda each: f"{each.alike:,}"),
    ("shared nodes", lambda each: f"{each.shared:,}"),
    ("memory alone", lambda each: _mb(each.memory.alone_nbytes)),
    ("together", lambda each: _mb(each.memory.together_nbytes)),
]


def _numbered(output: Destination, place: int, count: int) -> Destination:
    if count == 1:
        return output
    if output.path is None:
        raise UsageError(f"{output.option} - takes one file, but there are {count}: name a file")
    path = output.path
    suffix = SCHEDULE_SUFFIX if path.name.endswith(SCHEDULE_SUFFIX) else path.suffix
    return Destination(output.option, path.with_name(f"{path.name.removesuffix(suffix)}.{place + 1}{suffix}"))


def parse_memory(text: str) -> int:
    """Number of bytes in a text such as 16GB or 512MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text.strip().upper())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise click.BadParameter(f"{text!r} is not of the form 16GB.")
    return int(float(match[1]) * _UNITS[match[2]])


def _settings(
    device: str,
    policy: PolicyName,
    memory: int | None,
    share_input: tuple[str, ...],
    budget: float | None,
    precision: str,
    skip_broken: bool,
    searched: SearchOptions,
) -> BatchSettings:
    from iosched.jobs.batching.model_clusters import BatchSettings
    from iosched.profiler.devices.resolve import check_name

    check_name(device)
    return BatchSettings(
        device=device,
        policy=policy,
        memory_nbytes=memory,
        shared_inputs=share_input,
        precision=precision,
        budget_s=budget,
        skip_broken=skip_broken,
        **searched,
    )


@click.command(
    name="batch",
    cls=Command,
    short_help="Put several MODELS into one file that runs them fastest.",
    basic="output schedule policy memory share-input device budget replace dry-run json",
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)
@output_option(
    "-o",
    "--output",
    metavar="OUT.onnx",
    text=f"Model to write; '-' is stdout. Default: {_DEFAULT}.\n\nIf memory does not suffice for one file, OUT.1.onnx, "
    "OUT.2.onnx, … are written.",
)
@output_option(
    "--schedule",
    metavar="OUT.json",
    text="Schedule to write; '-' is stdout. Default: OUT.schedule.json if -o names a file.\n\nThe model also carries "
    "the schedule.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICY_NAMES),
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"Which operators to batch: {', '.join(POLICY_NAMES)}.\n\n'dpbat' batches where the gain exceeds the cost. "
    "'greedy' batches all equal operators, 'fcfs' those from the inputs to the first difference. 'auto' tries 'dpbat' "
    "and less batching. 'serial' and 'packed' batch nothing: models run one after another or in parallel.",
)
@click.option(
    "--memory",
    metavar="16GB",
    callback=lambda ctx, param, text: None if text is None else parse_memory(text),
    help="Memory limit for the models of one file. Default: that of the device, if known.",
)
@click.option(
    "--share-input",
    metavar="NAME",
    multiple=True,
    help="Feed input NAME once to all models that have it.\n\nEqual operators on it are computed once.",
)
@any_device_options
@binding_options
@precision_option("Number format of the computation on a GPU.")
@budget_option(
    "End after about SECONDS with the best result so far.",
)
@searched_options
@click.option(
    "--skip-broken",
    is_flag=True,
    help="Leave out models that cannot be read or run, with a note. By default such a model is an error.",
)
@click.option(
    "--replace",
    "replacements",
    metavar="NAME=NEW.onnx",
    multiple=True,
    help="Replace the weights of model NAME in a file of 'batch'. Repeat for several.\n\nNEW.onnx must have the same "
    "structure. Nothing is searched.",
)
@click.option("--dry-run", is_flag=True, help="Print the composition only; measure nothing.")
@click.option(
    "--requests",
    "rates",
    callback=by_name(parse_rate),
    metavar="20/s",
    help="Rate of requests to each MODEL, or NAME=20/s,…: write a policy for iosched.serve_together, no model.\n\nThe "
    "folder of the policy (-o, default policy.json) has all models in it.",
)
@click.option(
    "--p99",
    "p99_s",
    callback=by_name(parse_duration),
    metavar="50ms",
    help="With --requests: the p99 to stay below, or NAME=50ms,…. Default: five times the latency alone.",
)
@json_option
@verbosity_options
@gathered("settings", _settings)
def command(
    models: tuple[str, ...],
    output: Destination | None,
    schedule: Destination | None,
    binding: Binding,
    settings: BatchSettings,
    replacements: tuple[str, ...],
    dry_run: bool,
    rates: ByName,
    p99_s: ByName,
    as_json: bool,
) -> None:
    """Put several MODELs into one ONNX file, with the fastest way to run them all.

    A MODEL is NAME=FILE, or FILE with its stem as the name. Inputs and outputs get the model's name as a prefix, as in
    a/data and b/prob, so --input-shape a/data=1x3x224x224 applies to model a alone.

    Equal weights are stored once, and equal work on a shared input is computed once. Equal operators of different
    models become one operator where that is faster.

    The file is compared with the models one after another and in parallel, each by its best schedule or session. If it
    is not faster than both, the faster of these ships. Every model's outputs are compared with onnxruntime's before.
    Ctrl-C on a terminal asks whether to write the best result so far.

    \b
    Examples:
      iosched batch a.onnx b.onnx c.onnx -o super.onnx
      iosched batch cat=cat.onnx dog=dog.onnx --share-input pixels
      iosched batch a.onnx b.onnx --device v100 --memory 16GB --dry-run
      iosched run super.onnx --check --against a=a.onnx
      iosched batch super.onnx --replace a=retrained.onnx -o newer.onnx
    """
    if rates or p99_s:
        batch_policy(models, output, rates, p99_s, settings.threads, as_json)
        return
    files = OptimizedFiles(output or Destination("-o", _DEFAULT), schedule or schedule_of(output))
    if replacements:
        _replace(models, replacements, files, as_json)
        return
    named = parse_named(models)
    if not dry_run:
        check_destinations(files.outputs, inputs=files_of(named), as_json=as_json)
        refuse_terminal(files.model)
    loaded = read_models(named, binding, skips_broken=settings.skip_broken)
    if dry_run:
        _estimate(loaded, settings, as_json)
        return
    from iosched.jobs.annotate import annotated
    from iosched.jobs.batch import batch, planned_clusters

    count = len(planned_clusters(loaded, settings))
    written = _outputs(_each(files, count))
    check_destinations(written, inputs=files_of(named), as_json=as_json)
    note_before([settings.device], settings.threads)
    with progress_bar(settings.budget_s) as observer:
        result = batch(loaded, settings, observer, AskOnce(observer))
    outputs = _each(files, len(result.clusters))
    if len(outputs) != count:
        check_destinations(_outputs(outputs), inputs=files_of(named), as_json=as_json)
    for cluster, each in zip(result.clusters, outputs, strict=True):
        each.write(annotated(cluster.model, cluster.document), cluster.model.weights, cluster.document.to_json())
    if as_json:
        emit_result(as_object(result, outputs), INPUTS_SEED)
    _report(result, outputs, to_stderr=as_json or any(file.path is None for file in written))


def _estimate(models: Mapping[str, Model], settings: BatchSettings, as_json: bool) -> None:
    from iosched.jobs.batching.model_clusters import estimate

    found = estimate(models, settings)
    if as_json:
        clusters = [json_object(each, _ESTIMATED) for each in found.clusters]
        emit_json(json_object(found, f"{_DEVICE} policy memory_limit_nbytes clusters", clusters=clusters))
        return
    print_items(found.clusters, _ESTIMATE_COLUMNS, title=f"models that 'batch' would combine on {found.device_name}")


def _replace(models: tuple[str, ...], replacements: tuple[str, ...], files: OptimizedFiles, as_json: bool) -> None:
    """Replace the weights of models in a file of `batch`, without a search."""
    from iosched.jobs.annotate import annotated
    from iosched.jobs.batch import replace_members
    from iosched.models.composition.members import members_of

    if len(models) > 1:
        raise UsageError("--replace takes one MODEL: a file written by 'iosched batch'")
    if others := flags_given("policy", "memory", "share_input", "budget", "skip_broken", "dry_run"):
        raise UsageError(f"--replace searches nothing: leave {others[0]} out")
    named = parse_named(replacements)
    sources = [input_file(models[0]), *(input_file(each.source) for each in named)]
    check_destinations(files.outputs, inputs=sources, as_json=as_json)
    refuse_terminal(files.model)
    document, whole = read_schedule_and_model(models[0], None)
    if whole is None:
        raise UsageError(f"{models[0]} is a schedule: give the model written by 'iosched batch'")
    members = {member.name: member for member in members_of(whole.proto)}
    new = {}
    for each in named:
        inputs = members[each.name].inputs.items() if each.name in members else ()
        shapes = {own: whole.bindings[called] for own, called in inputs if called in whole.bindings}
        new[each.name] = read_with_shapes(each.source, shapes)
    model, document, unshared = replace_members(whole, document, new)
    files.write(annotated(model, document), model.weights, document.to_json())
    if as_json:
        emit_json({"output": str(files.model), "replaced": list(new), "unshared": unshared})
    lines = [
        f"{name}: {len(weights)} weights are no longer shared with other models."
        for name, weights in unshared.items()
        if weights
    ]
    lines += [f"Replaced {', '.join(new)}.", *wrote(files.outputs)]
    print_lines(lines, to_stderr=as_json or files.model.path is None)


def _each(files: OptimizedFiles, count: int) -> list[OptimizedFiles]:
    """The files of each cluster, numbered if there are several."""
    return [
        OptimizedFiles(_numbered(files.model, place, count), files.schedule and _numbered(files.schedule, place, count))
        for place in range(count)
    ]


def _outputs(each: list[OptimizedFiles]) -> list[Destination]:
    return [output for files in each for output in files.outputs]


def _report(result: BatchResult, each: list[OptimizedFiles], *, to_stderr: bool) -> None:
    if quiet():
        return
    print_result(result, to_stderr=to_stderr)
    lines = [*result.left_out.values(), *result.notes, *(line for one in result.clusters for line in one.notes)]
    for line in notes_after(dict.fromkeys(lines)):
        note(line)
    print_lines([*wrote(_outputs(each)), *each[0].next_lines()], to_stderr=to_stderr)


def as_object(result: BatchResult, outputs: list[OptimizedFiles]) -> dict[str, object]:
    """JSON object of `batch --json`."""
    members = [member for cluster in result.clusters for member in cluster.members]
    return json_object(
        result,
        _OBJECT,
        outputs=[str(each.model) for each in outputs],
        models=[json_object(member, "name nodes=n_nodes latency_us") for member in members],
        clusters=[_cluster_object(*pair) for pair in zip(result.clusters, outputs, strict=True)],
        batched=sum(cluster.batched for cluster in result.clusters),
        shared=sum(cluster.shared for cluster in result.clusters),
        rows=_row_objects(result.rows, result.n_models),
    )


def _cluster_object(cluster: ClusterResult, files: OptimizedFiles) -> dict[str, object]:
    names = [member.name for member in cluster.members]
    rows, ratio = _row_objects(cluster.rows, len(names)), cluster.ratio and json_object(cluster.ratio, COMPARED)
    return json_object(cluster, _CLUSTER, models=names, rows=rows, ratio=ratio, **files.as_object())


def _row_objects(rows: Sequence[Row], n_models: int) -> list[dict[str, object]]:
    return [json_object(row, _ROW, per_second=row.per_second(n_models)) for row in rows]


def print_result(result: BatchResult, *, to_stderr: bool) -> None:
    """Print the tables of all clusters."""
    for cluster in result.clusters:
        title = f"{', '.join(member.name for member in cluster.members)} on {result.device_name}"
        if result.cost == "analytic":
            title += " (analytic: computed from the GPU's specification, not measured)"
        _print_rows(cluster, title, to_stderr)
        print_items(cluster.members, _MODEL_COLUMNS, to_stderr=to_stderr)
        pairs = [
            ("shipped", f"{cluster.shipped} *: {cluster.reason}"),
            ("batched", f"{count_text(cluster.batched, 'operator')} combined with operators of other models"),
            ("shared", f"{count_text(cluster.shared, 'node')} reused from another model"),
            ("weights", f"{_mb(cluster.memory.alone_nbytes)} alone, {_mb(cluster.memory.together_nbytes)} together"),
            ("memory", _memory_text(cluster)),
            ("time spent", f"{result.seconds:.1f} s"),
        ]
        print_pairs("total", pairs, to_stderr=to_stderr)


def _print_rows(cluster: ClusterResult, title: str, to_stderr: bool) -> None:
    count = len(cluster.members)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("", lambda row: f"{row.name}{' *' if row.name == cluster.shipped else ''}"),
        ("all models", lambda row: latency_text(row.latency_us)),
        ("expected in" if cluster.document.cost == "analytic" else "95 % interval", _interval_text),
        ("after idle", lambda row: latency_text(row.rested_us, unknown="")),
        ("per model", lambda row: latency_text(row.latency_us / count)),
        ("models/s", lambda row: f"{row.per_second(count) or 0:,.0f}"),
        ("how", lambda row: row.how),
    ]
    print_items(cluster.rows, columns, title=title, to_stderr=to_stderr)


def _interval_text(row: Row) -> str:
    found = row.latency.interval
    return "" if found is None else f"{latency_text(found.low)} to {latency_text(found.high)}"


def _memory_text(cluster: ClusterResult) -> str:
    if cluster.plan_nbytes is None:
        return f"about {_mb(cluster.estimated_nbytes)} with tensors (estimated)"
    return f"{_mb(cluster.plan_nbytes)} with tensors (planned)"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
