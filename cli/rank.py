"""`iosched rank`: latency of many models on several devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from iosched.cli.cluster_display import ClusterUse, check_known, cluster_object, with_pool
from iosched.cli.common.complete import complete_model
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.named_models import name_of
from iosched.cli.common.options import (
    Binding,
    SearchOptions,
    binding_options,
    budget_option,
    cluster_option,
    devices_option,
    gathered,
    json_option,
    precision_option,
    searched_options,
    threads_option,
    verbosity_options,
)
from iosched.cli.common.output import INPUTS_SEED, emit_result, note, note_before, notes_after, quiet
from iosched.cli.common.progress import progress_bar
from iosched.cli.common.source import STDIN, read_model
from iosched.cli.common.tables import Columns, print_items
from iosched.cli.common.text import count_text, latency_text, share_text
from iosched.cli.help import Command
from iosched.jobs.ranking.measures import DEFAULT_MEASURE, MEASURES
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.rank import RankInterruptedError, RankResult, RankRow, RankSettings
    from iosched.jobs.ranking.measures import Measure
    from iosched.jobs.ranking.model_cost import ModelCost
    from iosched.models.model import Model
    from iosched.scheduler.precision import PrecisionName

_ROW = "model device flops params error"
_COST = (
    "cost latency_us low_us high_us level sequential_us shipped sum_us share_of_peak hit_rate measured_share"
    " search_seconds comparison_seconds notes"
)


def _settings(
    devices: tuple[str, ...],
    measure: Measure,
    precision: PrecisionName,
    budget: float | None,
    searched: SearchOptions,
) -> RankSettings:
    from iosched.jobs.rank import RankSettings

    if not devices:
        raise UsageError("--device names no device: give cpu, or names of GPUs")
    for device in devices:
        check_known(device)
    return RankSettings(
        devices,
        measure=measure,
        precision=precision,
        budget_s=budget,
        **searched,
    )


@click.command(
    name="rank",
    cls=Command,
    short_help="Rank MODELS by latency, on one device or several.",
    basic="device measure budget cluster json",
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)
@devices_option(
    default=("auto",),
    text="'auto', 'cpu', 'cuda[:N]' and names of GPUs. Repeat, or separate by commas.\n\nA named GPU that is not "
    "attached is simulated by an analytic model.",
)
@click.option(
    "--measure",
    type=click.Choice(MEASURES),
    default=DEFAULT_MEASURE,
    show_default=True,
    metavar="HOW",
    help="Measure whole 'models', 'stages' or 'none'.\n\n'models' optimizes each model and measures it. 'stages' "
    "measures stages alone and adds them up. 'none' uses the profile database only. Simulated devices measure nothing.",
)
@threads_option
@binding_options
@precision_option("Number format of the computation.")
@budget_option(
    "End after about SECONDS, shared equally between models.",
)
@cluster_option("Measure on devices of a Ray cluster.")
@searched_options
@json_option
@verbosity_options
@gathered("settings", _settings)
def command(
    models: tuple[str, ...], binding: Binding, settings: RankSettings, cluster: str | None, as_json: bool
) -> None:
    """Rank MODELS by the latency of what 'optimize' would ship on each device, fastest first.

    A latency is of one of three kinds. 'measured' is of a whole model. 'estimated' is a sum of stages measured alone;
    its uncertainty comes from models that were measured both ways on this device. 'analytic' is computed for a
    simulated GPU. Each latency has its interval.

    Stages that models share are measured once. The profile database keeps all measurements, so an interrupted call
    resumes. With --cluster, --device names devices of the cluster, whose workers measure models in parallel and also
    simulate GPUs.

    A model that cannot be read or run is a row with the reason; the exit code is an error only if all models fail.
    Ctrl-C prints the rows that are done.

    \b
    Examples:
      iosched rank *.onnx
      iosched rank *.onnx --device cpu,v100,t4 --measure stages
      iosched rank zoo:squeezenet zoo:googlenet --device h100,t4 --json
      iosched rank *.onnx --device cpu,v100 --cluster auto
    """
    (result, interrupted), used = _ranked(_sources(models, binding), settings, cluster)
    _print(result, settings, used, as_json=as_json)
    if interrupted is not None:
        raise interrupted
    if result.failure is not None:
        raise result.failure


_Ranked = tuple["RankResult", "RankInterruptedError | None"]


def _ranked(
    sources: dict[str, Callable[[], Model]], settings: RankSettings, cluster: str | None
) -> tuple[_Ranked, ClusterUse | None]:
    from iosched.jobs.rank import rank

    if cluster is not None:
        return with_pool(
            *(cluster, settings.profile_db, settings.threads),
            lambda pool, view: _partial_if_interrupted(lambda: rank(sources, settings, view, pool)),
            settings.budget_s,
        )
    if settings.measure != "none":
        note_before(settings.devices, settings.threads)
    with progress_bar(settings.budget_s) as observer:
        return _partial_if_interrupted(lambda: rank(sources, settings, observer)), None


def _partial_if_interrupted(ranking: Callable[[], RankResult]) -> _Ranked:
    """The result, and the interruption if there was one."""
    from iosched.jobs.rank import RankInterruptedError

    try:
        return ranking(), None
    except RankInterruptedError as interrupted:
        return interrupted.result, interrupted


def _print(result: RankResult, settings: RankSettings, used: ClusterUse | None, *, as_json: bool) -> None:
    if as_json:
        emit_result(as_object(result, settings) | cluster_object(used), INPUTS_SEED)
    elif not quiet():
        print_table(result)
    for line in notes_after(result.notes):
        note(line)


def _sources(models: tuple[str, ...], binding: Binding) -> dict[str, Callable[[], Model]]:
    """Loaders by model name; models with the same name are called by their paths.

    Raises:
        UsageError: a model is given twice.
    """
    names = [name_of(text) for text in models]
    found: dict[str, Callable[[], Model]] = {}
    for text, name in zip(models, names, strict=True):
        called = name if names.count(name) == 1 or text == STDIN else text
        if called in found:
            raise UsageError(f"{text} is given twice: leave one of them out")
        found[called] = partial(read_model, text, binding)
    return found


def as_object(result: RankResult, settings: RankSettings) -> dict[str, object]:
    """JSON object of `rank --json`."""
    rows = [{**json_object(row, _ROW), **json_object(row.cost, _COST)} for row in result.rows]
    keys = "rows measure hit_rate interrupted=was_interrupted seconds notes"
    return json_object(result, keys, rows=rows, measure=settings.measure)


def print_table(result: RankResult) -> None:
    """Print a row for each model and device, then notes."""
    columns: Columns[RankRow] = [
        ("model", lambda row: row.model),
        ("device", lambda row: row.device),
        ("latency", _of_cost(lambda cost: latency_text(cost.latency_us))),
        ("interval", _of_cost(_interval)),
        ("sequential", _of_cost(lambda cost: latency_text(cost.sequential_us))),
        ("parameters", lambda row: _scaled(row.params)),
        ("FLOPs", lambda row: _scaled(row.flops)),
        ("share of peak", _of_cost(lambda cost: "" if cost.share_of_peak is None else f"{cost.share_of_peak:.1%}")),
        ("source", _source),
        ("in database", _of_cost(lambda cost: "" if cost.hit_rate is None else share_text(cost.hit_rate))),
    ]
    print_items(result.rows, columns, title=_title(result))
    for row in result.rows:
        if row.error is not None and not row.is_unreached:
            note(f"{row.model} on {row.device}: {row.error}")
        for line in _interference(row):
            note(f"{row.model} on {row.device}: {line}")
    said = [
        line for row in result.rows if row.cost is not None and row.cost.cost == "estimated" for line in row.cost.notes
    ]
    for line in dict.fromkeys(said):
        note(line)


def _interference(row: RankRow) -> tuple[str, ...]:
    from iosched.profiler.measuring.interleaved_models import interference_notes

    whole = None if row.cost is None or row.cost.result is None else row.cost.result.shipped_whole
    return () if whole is None else interference_notes({row.model: whole})


def _title(result: RankResult) -> str:
    rate = "" if result.hit_rate is None else f", {share_text(result.hit_rate)} of stages from the database"
    return f"{count_text(len({row.model for row in result.rows}), 'model')}{rate}"


def _of_cost(cell: Callable[[ModelCost], str]) -> Callable[[RankRow], str]:
    """Cells of rows that have a latency; empty for others."""
    return lambda row: "" if row.cost is None else cell(row.cost)


def _interval(cost: ModelCost) -> str:
    if cost.low_us is None or cost.high_us is None or cost.level is None:
        return "unknown"
    return f"{latency_text(cost.low_us)} to {latency_text(cost.high_us)} ({cost.level:.0%})"


def _source(row: RankRow) -> str:
    """Source of the latency, or why there is none."""
    cost = row.cost
    if cost is None:
        return "interrupted" if row.is_unreached else "error"
    if cost.measured_share:
        return f"{cost.cost}, {share_text(cost.measured_share)} measured"
    return f"{cost.cost}, {cost.shipped}" if cost.cost == "measured" and cost.shipped else cost.cost


def _scaled(count: int | None) -> str:
    """A count with a unit prefix: `1.2M`."""
    if count is None:
        return ""
    for letter, unit in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= unit:
            return f"{count / unit:.2f} {letter}"
    return str(count)
