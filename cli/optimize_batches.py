"""`optimize --batch-sizes`: one model with a dynamic batch and a schedule for each batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from iosched.cli.cluster_display import ClusterUse, cluster_object, with_pool
from iosched.cli.common.optimized_files import OptimizedFiles
from iosched.cli.common.options import Binding
from iosched.cli.common.output import INPUTS_SEED, emit_result, note, note_before
from iosched.cli.common.progress import AskOnce, TerminalObserver, progress_bar
from iosched.cli.common.source import read_open_model
from iosched.cli.optimize_report import as_object, print_estimate, table_rows
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
    """The binding, with a single size of `--batch-sizes` as the batch size.

    Raises:
        UsageError: `--batch-size` is given as well.
    """
    if batch_sizes and binding.batch_size is not None:
        raise UsageError("--batch-size and --batch-sizes contradict each other: leave one out")
    return Binding(batch_sizes[0], binding.input_shapes) if len(batch_sizes) == 1 else binding


def read_dynamic(text: str, batch_sizes: Sequence[int], binding: Binding) -> DynamicBatchModel:
    """Load MODEL with a dynamic batch.

    Raises:
        UsageError: it has no batch, or the shapes do not fit.
        InvalidModelError: it cannot be run.
    """
    from iosched.models.dynamic_batch import with_dynamic_batch

    return with_dynamic_batch(read_open_model(text), batch_sizes, binding.input_shapes)


def estimate_each(
    model: DynamicBatchModel, batch_sizes: Sequence[int], settings: OptimizeSettings, *, as_json: bool
) -> None:
    """Print the size of the search for each batch size; one line of JSON each."""
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
    """Optimize for each batch size, write the files and print the results.

    Raises:
        The error of a batch size that failed, after the other schedules are written.
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
    notes = [*dict.fromkeys(line for each in found.results.values() for line in each.notes)]
    if found.left:
        notes.append(f"Interrupted before batch sizes {', '.join(map(str, found.left))}: they have no schedule.")
    example = f"--batch-size {found.schedules.batch_sizes[-1]} "
    files.report(tables, notes, as_json=as_json, options=example)
    for size, error in found.failed.items():
        note(f"Batch size {size} failed; the files have the schedules for the others.")
        raise error


def optimizing(
    settings: OptimizeSettings,
    cluster: str | None,
    do: Callable[[OptimizeOne, TerminalObserver, Interrupt], R],
) -> tuple[R, ClusterUse | None]:
    """Call `do` with the function that optimizes one model, on this machine or on a cluster."""
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


def batches_object(model: str, found: BatchesResult, files: OptimizedFiles) -> dict[str, object]:
    """JSON object of `optimize --batch-sizes --json`."""
    return {
        "model": model,
        **files.as_object(),
        "batch_sizes": list(found.results),
        "results": [{"batch_size": size, **as_object(each)} for size, each in found.results.items()],
        "failed": [{"batch_size": size, "error": str(error)} for size, error in found.failed.items()],
        "left": found.left,
    }
