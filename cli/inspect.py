"""`iosched inspect`: size of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import (
    Binding,
    binding_options,
    json_option,
    model_argument,
    pruning_options,
    verbosity_options,
)
from iosched.cli.common.output import emit_json
from iosched.cli.common.source import embedded_schedules, read_model
from iosched.cli.common.tables import print_columns
from iosched.cli.common.text import count_text, flops_text
from iosched.cli.help import Command

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.models.mutation.record import Record
    from iosched.scheduler.batch_schedules import BatchSchedules
    from iosched.scheduler.counts import Counts
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.document_format import Shipped
    from iosched.scheduler.pruning import Pruning

_OBJECT = """
model=model.name operators nodes flops=model.flops params=model.n_parameters pruning variant schedules blocks
"""
_COUNTS = ("operators", "width", "states", "transitions", "schedules", "stages", "signatures")


@click.command(
    name="inspect",
    cls=Command,
    short_help="Count blocks, operators, states and schedules of MODEL.",
    basic="r s no-pruning json",
)
@model_argument
@binding_options
@pruning_options
@json_option
@verbosity_options
def command(
    model: str,
    binding: Binding,
    pruning: Pruning,
    as_json: bool,
) -> None:
    """Show the blocks of MODEL and the size of the search in each; nothing is run.

    n is the number of operators of a block. d is its width: the largest number of operators that can run in parallel.
    """

    from iosched.models.mutation.record import record_of
    from iosched.scheduler.blocks import partition
    from iosched.scheduler.counts import count_blocks

    loaded = read_model(model, binding)
    blocks = [part.operators for part in partition(loaded.graph)]
    counts = list(count_blocks(loaded.graph, blocks, pruning))
    shipped = _shipped(embedded_schedules(loaded))
    found = _Inspected(loaded, pruning, counts, record_of(loaded.proto), shipped)
    if as_json:
        emit_json(as_object(found))
        return
    _print(found)


@dataclass(frozen=True, eq=False)
class _Inspected:
    """A model with the counts of its blocks.

    Attributes:
        shipped: the shipped alternative at each batch size that has a schedule.
    """

    model: Model
    pruning: Pruning
    blocks: Sequence[Counts]
    record: Record | None
    shipped: Mapping[int, Shipped]


def _shipped(schedules: ScheduleDocument | BatchSchedules | None) -> dict[int, Shipped]:
    from iosched.scheduler.document import ScheduleDocument

    if schedules is None:
        return {}
    if isinstance(schedules, ScheduleDocument):
        return {schedules.batch_size: schedules.shipped}
    return {size: document.shipped for size, document in schedules.by_size.items()}


def as_object(found: _Inspected) -> dict[str, object]:
    """JSON object of `inspect --json`."""
    return json_object(
        found,
        _OBJECT,
        operators=len(found.model.graph.operators),
        nodes=len(found.model.proto.graph.node),
        variant=None if found.record is None else _variant(found.record),
        schedules=[{"batch_size": size, "shipped": shipped} for size, shipped in found.shipped.items()],
        blocks=[{"index": index, **asdict(counts)} for index, counts in enumerate(found.blocks)],
    )


def _variant(record: Record) -> dict[str, object]:
    counts = {"seeded": len(record.seeded), "sliced": len(record.sliced)}
    return json_object(record, "base=name digest=base choices seeded sliced", **counts)


def _print(found: _Inspected) -> None:
    model, pruning = found.model, found.pruning
    limits = "no pruning" if pruning.r is None and pruning.s is None else f"pruning r={pruning.r} s={pruning.s}"
    title = (
        f"{model.name}: {len(model.graph.operators):,} operators ({len(model.proto.graph.node):,} nodes), "
        f"{flops_text(found.model.flops)}, {found.model.n_parameters:,} parameters; {limits}"
    )
    if found.record is not None:
        title += f"\n{_line(found.record)}"
    if found.shipped:
        title += f"\n{_schedules_line(found.shipped)}"
    rows = [
        [str(index), *(_number(getattr(counts, key)) for key in _COUNTS), f"{counts.upper_bound:.3g}"]
        for index, counts in enumerate(found.blocks)
    ]
    headers = ["block", "n", "d", "states", "transitions", "schedules", "stages", "signatures", "upper bound"]
    print_columns(headers, rows, title=title)


def _line(record: Record) -> str:
    made = [count_text(len(record.choices), "choice"), count_text(len(record.seeded), "seeded weight")]
    if record.sliced:
        made.append(f"{count_text(len(record.sliced), 'weight')} sliced from the base")
    return f"a variant of {record.name!r}: {', '.join(made)}"


def _schedules_line(shipped: Mapping[int, Shipped]) -> str:
    sizes = ", ".join(f"{size} ({what} ships)" for size, what in shipped.items())
    return f"with a schedule for batch size {sizes}" if len(shipped) == 1 else f"with schedules for batch sizes {sizes}"


def _number(value: int) -> str:
    return f"{value:,}" if value < 10**12 else f"{value:.3e}"
