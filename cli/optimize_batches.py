"""`optimize --batch-sizes`: one model with a dynamic batch, and a schedule in it for each of several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from iosched.cli.cluster import ClusterUse, cluster_object, with_pool
from iosched.cli.dry_run import print_estimate
from iosched.cli.interrupt import AskOnce
from iosched.cli.optimize_report import as_object, table_rows
from iosched.cli.optimized_files import OptimizedFiles
from iosched.cli.options import Binding
from iosched.cli.output import INPUTS_SEED, emit_result, note, note_before
from iosched.cli.progress import TerminalObserver, progress_bar
from iosched.cli.source import read_open_model
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.observer import Interrupt
    from iosched.jobs.optimize_batches import BatchesResult, OptimizeOne
    from iosched.jobs.settings import OptimizeSettings
    from iosched.models.dynamic_batch import DynamicBatchModel
    from iosched.scheduler.batch_schedules import BatchSchedules
    from iosched.scheduler.document import ScheduleDocument

R = TypeVar("R")


def one_size(binding: Binding, batch_sizes: tuple[int, ...]) -> Binding:
    """The binding, with the batch size of `--batch-sizes` where that is one.

    Raises:
        UsageError: `--batch-size` is given, too.
    """
    if batch_sizes and binding.batch_size is not None:
        raise UsageError("--batch-size and --batch-sizes contradict each other: leave one out")
    return Binding(batch_sizes[0], binding.input_shapes) if len(batch_sizes) == 1 else binding


def read_dynamic(text: str, batch_sizes: Sequence[int], binding: Binding) -> DynamicBatchModel:
    """Loads MODEL with its batch dynamic.

    Raises:
        UsageError: it has no batch, or the shapes given do not fit.
        InvalidModelError: it is no model that can be run.
    """
    from iosched.models.dynamic_batch import with_dynamic_batch

    return with_dynamic_batch(read_open_model(text), batch_sizes, binding.input_shapes)


def estimate_each(
    model: DynamicBatchModel, batch_sizes: Sequence[int], settings: OptimizeSettings, *, as_json: bool
) -> None:
    """Prints how large the search for each batch size is; one JSON object each, on a line of its own."""
    for size in batch_sizes:
        if not as_json:
            click.echo(f"Batch size {size}")
        print_estimate(model.at(size), settings, as_json=as_json)


def optimize_each(
    model: DynamicBatchModel,
    batch_sizes: Sequence[int],
    settings: OptimizeSettings,
    taken: ScheduleDocument | BatchSchedules | None,
    files: OptimizedFiles,
    *,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Optimizes for each batch size, writes the files and prints what was found.

    Raises:
        What failed at a batch size, after the files were written with the schedules for the others.
    """
    from iosched.jobs.annotate import annotated_batches
    from iosched.jobs.optimize_batches import optimize_batches

    found, used = optimizing(
        *(settings, cluster),
        lambda one, view, held: optimize_batches(model, batch_sizes, settings, view, held, taken, one),
    )
    files.write(annotated_batches(model, found.schedules), model.unbound.weights, found.schedules.to_json())
    if as_json:
        emit_result(batches_object(model.name, found, files) | cluster_object(used), INPUTS_SEED)
    titles = {size: f"{model.name}, batch size {size}, on {each.device_name}" for size, each in found.results.items()}
    tables = [(titles[size], table_rows(each)) for size, each in found.results.items()]
    notes = dict.fromkeys(line for each in found.results.values() for line in each.notes)
    example = f"--batch-size {found.schedules.batch_sizes[-1]} "
    files.report(tables, [*notes, *_missing(found)], as_json=as_json, options=example)
    for size, error in found.failed.items():
        note(f"Batch size {size} failed; the files have the schedules for the others.")
        raise error


def optimizing(
    settings: OptimizeSettings,
    cluster: str | None,
    do: Callable[[OptimizeOne, TerminalObserver, Interrupt], R],
) -> tuple[R, ClusterUse | None]:
    """What `do` makes of the function that optimizes one model, on this machine or on a device of a cluster."""
    if cluster is None:
        from iosched.jobs.optimize import optimize

        note_before([settings.device], settings.threads)
        with progress_bar(settings.budget_s) as observer:
            return do(optimize, observer, AskOnce(observer)), None
    from iosched.jobs.optimize_task import optimize_on

    return with_pool(
        *(cluster, settings.profile_db, settings.threads),
        lambda pool, view: do(partial(optimize_on, pool), view, AskOnce(view)),
        settings.budget_s,
    )


def _missing(found: BatchesResult) -> list[str]:
    sizes = ", ".join(map(str, found.left))
    return [f"Interrupted before batch sizes {sizes}: there is no schedule for them."] if found.left else []


def batches_object(model: str, found: BatchesResult, files: OptimizedFiles) -> dict[str, object]:
    """The object that `optimize --batch-sizes --json` prints."""
    return {
        "model": model,
        **files.as_object(),
        "batch_sizes": list(found.results),
        "results": [{"batch_size": size, **as_object(each)} for size, each in found.results.items()],
        "failed": [{"batch_size": size, "error": str(error)} for size, error in found.failed.items()],
        "left": found.left,
    }
